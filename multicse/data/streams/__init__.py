"""The kinds of streams: one module each, and what they share. Kinds are found by their names (`multicse.plugins`)."""
