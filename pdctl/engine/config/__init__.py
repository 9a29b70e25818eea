"""What an instance was asked to be, what its checkpoint says, and whether the two go together. No torch."""
