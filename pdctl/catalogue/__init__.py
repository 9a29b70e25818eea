"""Every failure mode that pdctl can name: one entry per code, as data.

CONTRIBUTING.md lists what else a new code needs.
"""
