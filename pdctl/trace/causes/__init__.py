"""One small function for each cause a room can have ended by: it finds its lines, or it says nothing."""
