"""Prometheus' HTTP API: its paths, parameters, JSON and errors, over the embedded store or another engine."""
