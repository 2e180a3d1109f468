"""How decisions in environments become rows of a batch: slots that play, the requests that they send, and rows that arrive."""
