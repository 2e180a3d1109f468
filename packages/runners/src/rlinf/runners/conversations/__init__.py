"""Conversations with tools as exact tokens: what learning by reinforcement and from examples share."""
