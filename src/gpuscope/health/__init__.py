"""What is wrong, and what to do about it: the only place that decides.

`xids`, `throttles`, `states` and `thresholds` are tables; `checks` has one row per kind of finding, with a live
predicate and a PromQL form. `facts` sorts samples by subject, `findings.judge` makes findings and GPU states of
them, `idle_times` and `since_times` keep state between two judgements. Page, doctor and `/api/findings` read
the result. DCGM's own health rules are a matter of compatibility and stay with that family.
"""
