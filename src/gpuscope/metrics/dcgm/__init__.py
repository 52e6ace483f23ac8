"""Parts of the dcgm family: dcgm-exporter's options, files, device selection, values and own counters."""
