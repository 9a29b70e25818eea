"""Every failure mode pdctl can name: one entry per code, as data."""
