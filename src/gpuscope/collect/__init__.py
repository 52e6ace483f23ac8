"""Put together: runs each source at its tiers, merges what they say, integrates, publishes snapshots."""
