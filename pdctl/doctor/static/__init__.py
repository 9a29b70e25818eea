"""Checks that need only files: a topology and its plan, a manifest, a start script."""
