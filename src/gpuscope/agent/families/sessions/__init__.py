"""Five gpu_* metrics of the processes on each GPU, for a textfile."""
