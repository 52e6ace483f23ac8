"""What went wrong over a time range, since when, and what it cost: windows, episodes, the ledger."""
