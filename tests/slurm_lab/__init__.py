"""Real Slurm clusters on this machine: munged, slurmctld and four slurmd, in their own network namespace."""
