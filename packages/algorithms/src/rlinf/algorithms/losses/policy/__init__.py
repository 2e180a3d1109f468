"""Policy losses, one algorithm in each file: its equation, its function, and the frozen dataclass that a run names."""
