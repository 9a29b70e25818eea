"""Bootstrap, handshake, and the two ends of a room."""
