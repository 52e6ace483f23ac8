"""The metric families of NVIDIA's exporters."""
