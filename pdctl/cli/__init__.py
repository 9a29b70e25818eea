"""One file per verb (`status`, `ls` and `down` share one): parse, call, render, and choose the exit code."""
