"""Scraping: discovery, relabelling, fetching, and ingestion of samples into the store."""
