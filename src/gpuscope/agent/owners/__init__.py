"""Owners: the user, container, pod and Slurm job of a process, and who was allocated a GPU.

Lookup (`process_lookup`, `pod_reader`, `docker_containers`, `cri_containers`, `pod_resources`, `job_files`):
each way of learning something is a module of its own, may be missing, fails alone, and runs in a worker if it
can hang. Join (`process_enricher`, `allocation_matching`, `owner_join`) and accounts (`owner_accounts`) run in
the collector's thread and only use what the workers have.
"""
