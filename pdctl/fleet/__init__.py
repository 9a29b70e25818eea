"""The only network input and output of the operations side: endpoints in, facts out."""
