"""Measurements of what the design promises; `python -m benchmarks [NAME…]` runs them and prints tables."""
