"""What only one vendor's GPUs have: a folder each."""
