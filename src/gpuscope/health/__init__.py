"""What is wrong, and what to do about it: the only place that decides.

`xids`, `throttles`, `states` and `thresholds` are tables; `checks` has one row per kind of trouble, each with
a live predicate and a PromQL form; `findings` turns a picture of the fleet into findings. Page, doctor,
snapshot, alert rules and reports read these; none of them has a threshold of its own. DCGM's own health rules
are a compatibility matter and stay with that family.
"""
