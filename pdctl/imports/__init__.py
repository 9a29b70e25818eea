"""Other people's start scripts, compose files, recipes and manifests as a topology, with a note on all that changes."""
