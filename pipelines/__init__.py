"""Scripts: one per method, with its recipes, and one per command."""
