"""Robots: a controller beside each, a safety layer, and an environment that talks to it."""

from rlinf.envs.realworld.realworld import RealWorld as RealWorld
from rlinf.envs.realworld.realworld import Simulation as Simulation

# isort: split
from rlinf.envs.realworld.arm import PANDA as PANDA
from rlinf.envs.realworld.arm import Arm as Arm
from rlinf.envs.realworld.client import ControllerClient as ControllerClient
from rlinf.envs.realworld.controller import Controller as Controller
from rlinf.envs.realworld.controller import ControllerConfig as ControllerConfig
from rlinf.envs.realworld.limits import Limits as Limits
from rlinf.envs.realworld.link import LinkFaults as LinkFaults
from rlinf.envs.realworld.robot import Command as Command
from rlinf.envs.realworld.robot import Reading as Reading
from rlinf.envs.realworld.robot import Robot as Robot
from rlinf.envs.realworld.robot import RobotConfig as RobotConfig
from rlinf.envs.realworld.robot import RobotFault as RobotFault
from rlinf.envs.realworld.robot import register_robot as register_robot
from rlinf.envs.realworld.server import Serving as Serving
from rlinf.envs.realworld.simulated import SimulatedFranka as SimulatedFranka
