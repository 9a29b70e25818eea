"""Every parallel shape answers as one rank does: every prefill shape paired with every decode shape."""
