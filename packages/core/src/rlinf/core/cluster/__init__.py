"""The words of clusters: worker groups, channels and messages, waiting for calls, and work that changes hands."""
