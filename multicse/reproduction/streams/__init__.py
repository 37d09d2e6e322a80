"""Streams of the papers' baselines."""
