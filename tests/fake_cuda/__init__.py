"""A fake libcuda.so.1: the CUDA driver API without a GPU.

Written against NVIDIA's own cuda.h. It checks arguments, handles and order, and derives busy time only from
launches and their instructions. The fake NVML library of `tests/fake_nvml` shows that busy time.
"""
