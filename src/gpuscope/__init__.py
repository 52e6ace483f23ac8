"""GPU monitoring in one process: exporters, history, PromQL, alerts, reports and a web page."""

__version__ = "0.1.0"
