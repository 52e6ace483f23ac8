"""Warns the holders of idle GPUs, and may then run a command.

`policy_file` says when, `idle_holders` finds them, `job_nodes` says where Slurm has placed a job,
`command_obstacles` who is left alone, `policy_steps` decides, `policy_state` keeps what was done,
`policy_audit` records every action.
"""
