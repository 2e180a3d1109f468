"""Queues, locks and the sockets that carry them."""
