"""What is wrong, and what to do about it: the only place that decides.

`xids`, `throttles`, `states` and `thresholds` are tables; `checks` has one row per kind of finding, with one
PromQL expression. `judgement` keeps what the expressions say of now and since when; `findings`
makes findings of it, with names and numbers from `facts`, which sorts samples by subject. Page, doctor and
`/api/findings` read the result. DCGM's own health rules are a matter of compatibility and stay with that
family.
"""
