"""Contrastive sentence embeddings over text, images and audio."""
