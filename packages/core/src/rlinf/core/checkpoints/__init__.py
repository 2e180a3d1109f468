"""Checkpoints on disk: where their weights lie, and how what was written stays."""
