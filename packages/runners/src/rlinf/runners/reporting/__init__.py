"""What a run tells: phases and their times, metrics, progress and the summary."""
