"""Benchmarks of speed."""
