"""What runs on every node: sources, owners, one snapshot a second, metric families."""
