"""The parts of the native family: GPUs, processes, sources and the agent itself."""
