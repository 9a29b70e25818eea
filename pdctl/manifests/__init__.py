"""From files to a Manifest: YAML documents and start scripts."""
