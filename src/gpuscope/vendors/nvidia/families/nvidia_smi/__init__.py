"""nvidia_gpu_exporter's metrics: their table, and how that program names and counts what nvidia-smi prints."""
