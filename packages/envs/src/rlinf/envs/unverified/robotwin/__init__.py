"""RoboTwin, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.robotwin.robotwin import RoboTwin as RoboTwin
