"""Queues and channels, what travels in them, and how a thread waits for it; `sockets` carries it between processes."""
