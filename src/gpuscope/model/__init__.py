"""The values that everything passes on: readings, series, the text of metrics."""
