"""Log files, their lines, and the events a dialect reads in them."""
