"""What every verb prints over fixed files: a move of code must leave each byte as it was."""
