"""Family `slurm`."""
