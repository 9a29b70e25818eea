"""What PD routers other than pdctl's own log."""
