"""Checks that need nothing but what was written: a topology and its plan, a manifest, a start script."""
