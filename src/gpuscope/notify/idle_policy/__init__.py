"""Warns the holders of idle GPUs, and may then run a command.

`policy_file` says when, `idle_holders` finds them, `policy_steps` decides, `policy_audit` records every action.
"""
