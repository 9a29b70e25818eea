"""The small checkpoints that ship with pdctl, and the scripts that made them."""
