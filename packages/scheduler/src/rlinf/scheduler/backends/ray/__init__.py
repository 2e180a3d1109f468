"""The `ray` back-end; imports Ray in its `_x.py` files only."""
