"""The live picture: `/api/live`, its event stream, and `/api/findings` of now.

The samples of a moment (`collector_samples`, `store_samples` or `engine_samples`) are judged (`fleet_judge`)
and become the JSON of the picture (`picture`); `live_fleet` makes one picture for all clients. Nodes that send
nothing (`gone_nodes`) and GPUs that are not read (`unread_gpus`) come from the history.
"""
