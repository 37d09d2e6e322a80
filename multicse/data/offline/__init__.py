"""Input of the demos, made from files that installed packages contain."""

OFFLINE = "runs/offline"
"""Folder of the shards that the demos read; nothing is downloaded for them."""
