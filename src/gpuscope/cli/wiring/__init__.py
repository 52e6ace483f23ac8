"""The only place that builds objects and starts threads; each command imports the part it needs."""
