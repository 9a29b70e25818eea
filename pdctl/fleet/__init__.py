"""The ops side's only network input and output: endpoints in, facts out."""
