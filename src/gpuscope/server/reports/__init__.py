"""Answers over a time range, made by `gpuscope.reports`: `/api/report`, `/api/job`, `/api/findings?since=`."""
