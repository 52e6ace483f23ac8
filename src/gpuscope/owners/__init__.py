"""Whose it is: a process' user, container, pod and Slurm job; and whom the scheduler gave a GPU to.

Each way of knowing is a file of its own, may be missing, and fails alone. Nothing here is asked while a scrape
waits: what can hang runs in a worker of its own.
"""
