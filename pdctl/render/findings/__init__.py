"""Doctor's report in every form it is asked for: one module per form, the same findings in each."""
