"""A run on paper: calls, the devices that they work on, and the cores that they share."""

from rlinf.scheduler.planner.simulation.device_timelines import Options as Options
from rlinf.scheduler.planner.simulation.simulator import Simulation as Simulation
from rlinf.scheduler.planner.simulation.simulator import simulate as simulate
from rlinf.scheduler.planner.simulation.simulator import step_seconds as step_seconds
