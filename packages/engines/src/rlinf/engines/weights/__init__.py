"""Named weights: what they look like, how they are put together one at a time, and how they are compared."""
