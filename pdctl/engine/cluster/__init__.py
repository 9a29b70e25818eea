"""The processes of an instance on all of its nodes: starting, connecting and ending them together."""
