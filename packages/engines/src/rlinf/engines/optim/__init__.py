"""Optimizers: what one is configured with, and how it steps."""
