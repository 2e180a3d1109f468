"""Simulators in interpreters of their own: the env server."""

from rlinf.envs.remote.config import Remote as Remote
from rlinf.envs.remote.launch import Deadlines as Deadlines
from rlinf.envs.remote.launch import SimulatorDied as SimulatorDied
