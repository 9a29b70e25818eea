"""One-file builds of pdctl: `python -m tools.build_pyz`, `python -m tools.build_executable` (docs/install.md)."""
