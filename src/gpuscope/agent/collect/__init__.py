"""Put together: wakes the workers, merges the sources' readings, integrates counters, publishes snapshots."""
