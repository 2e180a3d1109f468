"""Observations as networks read them: states, and images of cameras."""
