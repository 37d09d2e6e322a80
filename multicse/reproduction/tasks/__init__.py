"""Evaluation tasks of single papers."""
