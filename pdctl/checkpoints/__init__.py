"""The checkpoint that ships with pdctl, and the scripts that made it."""
