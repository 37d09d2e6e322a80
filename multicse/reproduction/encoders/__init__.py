"""Encoders and poolings of single papers."""
