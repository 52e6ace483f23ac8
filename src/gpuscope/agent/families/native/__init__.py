"""gpuscope's own metrics: table, and builders for GPUs, processes, owners, sources and the agent itself."""
