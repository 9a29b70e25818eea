"""What an elastic replica can be, and how it changes: states and transitions, as data (docs/elastic.md)."""
