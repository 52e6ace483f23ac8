"""What one job or pod requested, held and used."""
