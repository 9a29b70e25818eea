"""An instance's arguments, its checkpoint's config, and whether the two fit together. No torch."""
