"""node_exporter's node_* metrics, as far as dashboards use them."""
