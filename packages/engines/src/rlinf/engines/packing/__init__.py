"""Packing: rows of text side by side, and what they begin with alike computed once."""
