"""Starts a plan, watches it, ends it without leaving anything behind."""
