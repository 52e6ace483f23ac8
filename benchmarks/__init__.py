"""Benchmarks of the design goals; `python -m benchmarks [NAME…]` runs them and prints tables."""
