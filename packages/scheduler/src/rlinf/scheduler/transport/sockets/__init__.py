"""The transport between processes: requests to other processes, answers to theirs, and the connections that carry both."""
