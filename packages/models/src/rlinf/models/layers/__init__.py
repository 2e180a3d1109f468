"""What several networks are made of."""
