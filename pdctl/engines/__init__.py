"""What each engine version speaks, as data."""
