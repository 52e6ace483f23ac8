"""The web configuration file of Prometheus' exporter-toolkit: `config_file` reads it, the others apply it."""
