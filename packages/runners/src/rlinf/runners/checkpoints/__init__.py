"""A run's folder, its checkpoints, and how a run goes on from one."""
