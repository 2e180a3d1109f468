"""What a cluster has: nodes, accelerators, robots, and the groups of nodes."""

from rlinf.scheduler.hardware.amd import AmdGpu as AmdGpu
from rlinf.scheduler.hardware.ascend import AscendNpu as AscendNpu
from rlinf.scheduler.hardware.detection import detect as detect
from rlinf.scheduler.hardware.intel import IntelGpu as IntelGpu
from rlinf.scheduler.hardware.inventory import Inventory as Inventory
from rlinf.scheduler.hardware.inventory import NodeGroup as NodeGroup
from rlinf.scheduler.hardware.inventory import Pool as Pool
from rlinf.scheduler.hardware.listing import take_inventory as take_inventory
from rlinf.scheduler.hardware.node import Device as Device
from rlinf.scheduler.hardware.node import Node as Node
from rlinf.scheduler.hardware.nvidia import NvidiaGpu as NvidiaGpu
from rlinf.scheduler.hardware.registry import ACCELERATORS as ACCELERATORS
from rlinf.scheduler.hardware.registry import Accelerator as Accelerator
from rlinf.scheduler.hardware.registry import register_accelerator as register_accelerator
from rlinf.scheduler.hardware.registry import register_hardware as register_hardware
from rlinf.scheduler.hardware.robots import Franka as Franka
from rlinf.scheduler.hardware.robots import SimulatedArm as SimulatedArm
