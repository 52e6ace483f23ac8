"""Stand-ins for exporters of NVIDIA's GPUs."""
