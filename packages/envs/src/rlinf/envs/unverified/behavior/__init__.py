"""BEHAVIOR-1K, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.behavior.behavior import Behavior as Behavior
