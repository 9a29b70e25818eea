"""Doctor's report in all its forms, with the same findings in each."""
