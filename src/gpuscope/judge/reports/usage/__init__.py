"""GPU-hours by owner, node or model over a time range."""
