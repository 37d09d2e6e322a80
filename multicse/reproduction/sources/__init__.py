"""Readers of the downloads of datasets."""
