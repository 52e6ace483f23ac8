"""Answers over a time range, made by `judge/reports/`: `/api/report`, `/api/job`, `/api/findings?since=`."""
