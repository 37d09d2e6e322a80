"""Benchmarks of speed and robustness."""
