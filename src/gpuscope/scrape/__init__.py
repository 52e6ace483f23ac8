"""Brought in: samples from our own agent, from scraped targets and from remote writers, into the store."""
