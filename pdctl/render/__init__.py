"""What answers look like, on the terminal and in files."""
