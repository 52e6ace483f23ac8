"""Prometheus' HTTP API, over the embedded store or another engine, and Alertmanager's API v2.

Paths, parameters, JSON and errors are the originals'. `notification_routes` are our own.
"""
