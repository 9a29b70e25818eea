"""What pdctl's own engine, router and launcher log."""
