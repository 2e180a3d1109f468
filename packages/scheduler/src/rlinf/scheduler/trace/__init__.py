"""The flow trace: what each worker did, who fed whom, and how long each waited."""

from rlinf.scheduler.trace.chrome import merge as merge
from rlinf.scheduler.trace.flow import Flow as Flow
from rlinf.scheduler.trace.flow import FlowEdge as FlowEdge
from rlinf.scheduler.trace.flow import FlowNode as FlowNode
from rlinf.scheduler.trace.reading import about as about
from rlinf.scheduler.trace.reading import spans as spans
from rlinf.scheduler.trace.spans import Span as Span
