"""Workers: the base of everything that a cluster runs, and what a cluster gives it."""

from rlinf.core.worker.context import WorkerAddress as WorkerAddress
from rlinf.core.worker.context import WorkerContext as WorkerContext
from rlinf.core.worker.context import WorkerInfo as WorkerInfo
from rlinf.core.worker.context import injected as injected
from rlinf.core.worker.worker import Worker as Worker
from rlinf.core.worker.worker import WorkerGroupSpec as WorkerGroupSpec
from rlinf.core.worker.worker import idempotent as idempotent
