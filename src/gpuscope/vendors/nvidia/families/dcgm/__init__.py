"""dcgm-exporter's metrics: their table, counters files, device selection, values and computed counters."""
