"""What a run is doing when it seems to do nothing: the wait graph, the stacks of its processes, and the heartbeat."""

from rlinf.scheduler.watch.graph import WaitGraph as WaitGraph
