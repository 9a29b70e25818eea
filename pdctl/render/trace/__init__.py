"""The views of one room: a timeline with its verdict, and the same as JSON, Mermaid, Perfetto and HTML."""
