"""What was: kept in a store, brought in, sent on, asked with PromQL."""
