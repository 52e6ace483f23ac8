"""What it means: checks, rules, messages, reports."""
