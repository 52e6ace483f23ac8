"""Answers over a time range, made by `gpuscope.judge.reports`: `/api/report`, `/api/job`, `/api/findings?since=`."""
