"""One file per verb: parse, call, render, exit code. No logic."""
