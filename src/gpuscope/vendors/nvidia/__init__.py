"""NVIDIA: its driver, tools, errors, exporters' names."""
