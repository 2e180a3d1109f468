"""A writer for tests that look at what was written."""


class Kept:
    """Keeps episodes in a list."""

    def __init__(self):
        self.episodes = []
        self.closed = 0

    @property
    def count(self):
        return len(self.episodes)

    def write(self, episode):
        self.episodes.append(episode)

    def close(self):
        self.closed += 1
