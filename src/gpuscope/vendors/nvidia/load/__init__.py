"""A GPU load whose numbers are known in advance, and its comparison with what the monitor shows.

Kernels are PTX text that the driver compiles (`kinds.py`), run through the CUDA driver API (`cuda.py`) by one
child process for each GPU (`device_process.py`). The parent reads the same GPUs as the agent does and compares.
"""
