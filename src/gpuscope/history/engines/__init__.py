"""PromQL clients: one interface, `query_engine.QueryEngine`, over the embedded store or over the HTTP API of
Prometheus, VictoriaMetrics, Thanos, Mimir or another gpuscope.

`engine_errors` draws the exception tree. `http_connection` and `blocking` do not import numpy, so that commands
start fast.
"""
