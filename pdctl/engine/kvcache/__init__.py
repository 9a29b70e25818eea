"""The paged KV pool and who owns which page."""
