"""What is served over HTTP.

`http/` implements the protocol; `app.py` assembles the server's handlers, `exporter.py` the agent's; the other
folders have the routes. `/api/v1` is Prometheus' API and `/api/v2` Alertmanager's; every other `/api/…` is our
own, and its JSON is declared in `api_types/`.
"""
