"""Turn other people's start scripts, compose files, recipes and manifests into a topology, and note what changes."""
