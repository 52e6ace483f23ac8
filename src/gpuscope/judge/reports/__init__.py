"""Sums over a time range: GPU-hours by owner, node or model, and where every hour went."""
