"""Turn files, YAML documents and start scripts, into a Manifest."""
