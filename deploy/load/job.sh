#!/bin/sh
# Loads the GPUs of a Slurm allocation for two minutes: sbatch --gres=gpu:2 job.sh
#SBATCH --job-name=gpuscope-load
#SBATCH --gres=gpu:1
#SBATCH --time=00:05:00
# Slurm hides the GPUs of other jobs, so all that are visible are loaded.
exec gpuscope load --kind tensor --duration 120
