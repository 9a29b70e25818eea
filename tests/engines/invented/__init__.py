"""An engine nobody has: its adapter and rows, for the test that pdctl needs no more of an engine than that."""
