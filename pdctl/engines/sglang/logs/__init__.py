"""SGLang's log lines, one table per part of a room's life (0.5.3, 0.5.8, 0.5.13, 0.5.18, 0.5.23)."""
