"""What the user wrote: the YAML, with the place of every value."""
