"""Alerts sent to real Alertmanagers: the `alerting` section of prometheus.yml, queues, and the POST."""
