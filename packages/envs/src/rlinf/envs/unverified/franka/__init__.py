"""A Franka arm, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.franka.franka import Franka as Franka
from rlinf.envs.unverified.franka.franka import Operator as Operator
