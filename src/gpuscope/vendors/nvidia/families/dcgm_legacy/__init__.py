"""The 2018 textfile exporter's dcgm_* metrics: their table and builder."""
