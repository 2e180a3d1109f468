"""A Franka arm for a robot's controller, written to its driver's documentation."""

from rlinf.envs.unverified.franka.franka import Franka as Franka
