"""How nvidia_gpu_exporter names and counts what nvidia-smi prints; put together in families/nvidia_smi.py."""
