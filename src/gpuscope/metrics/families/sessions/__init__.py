"""Five gpu_* metrics that say which process is on which GPU, for a textfile."""
