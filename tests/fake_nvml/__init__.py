"""A fake libnvidia-ml.so.1: the real NVML code path without a GPU. See README.md."""
