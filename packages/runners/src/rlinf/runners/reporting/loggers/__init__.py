"""Where a run's numbers go: what a logger is, how it is named, and those that come with this package."""
