"""Placement, worker groups and channels, on Ray or in one process."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from rlinf.core.worker import Worker as Worker
from rlinf.core.worker import WorkerAddress as WorkerAddress
from rlinf.core.worker import WorkerInfo as WorkerInfo
from rlinf.core.worker import idempotent as idempotent
from rlinf.core.worker.compat import absent_from as _absent_from
from rlinf.scheduler.cluster import Cluster as Cluster
from rlinf.scheduler.compat import SCHEDULER as _SCHEDULER
from rlinf.scheduler.config import ClusterConfig as ClusterConfig
from rlinf.scheduler.config import VirtualAccelerators as VirtualAccelerators
from rlinf.scheduler.hardware import Inventory as Inventory
from rlinf.scheduler.hardware import Node as Node
from rlinf.scheduler.hardware import NodeGroup as NodeGroup
from rlinf.scheduler.hardware import register_accelerator as register_accelerator
from rlinf.scheduler.hardware import register_hardware as register_hardware
from rlinf.scheduler.membership import NodeInfo as NodeInfo
from rlinf.scheduler.placement import ComponentPlacement as ComponentPlacement
from rlinf.scheduler.placement import FlexiblePlacementStrategy as FlexiblePlacementStrategy
from rlinf.scheduler.placement import HybridComponentPlacement as HybridComponentPlacement
from rlinf.scheduler.placement import ModelParallelComponentPlacement as ModelParallelComponentPlacement
from rlinf.scheduler.placement import NodePlacementStrategy as NodePlacementStrategy
from rlinf.scheduler.placement import PackedPlacementStrategy as PackedPlacementStrategy
from rlinf.scheduler.placement import PlacementMode as PlacementMode
from rlinf.scheduler.placement import PlacementStrategy as PlacementStrategy
from rlinf.scheduler.placement import ProcessPlan as ProcessPlan
from rlinf.scheduler.trace import Flow as Flow
from rlinf.scheduler.transport.channel import Channel as Channel
from rlinf.scheduler.transport.work import Work as Work
from rlinf.scheduler.watch.graph import WaitGraph as WaitGraph
from rlinf.scheduler.workers.group import Handle as Handle
from rlinf.scheduler.workers.group import UnknownMethod as UnknownMethod
from rlinf.scheduler.workers.group import WorkerGroup as WorkerGroup
from rlinf.scheduler.workers.supervisor import Supervisor as Supervisor

if not _TYPE_CHECKING:  # a checker says of a name that is not here that it is not
    __getattr__ = _absent_from(__name__, _SCHEDULER)
