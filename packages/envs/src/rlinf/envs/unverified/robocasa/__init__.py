"""RoboCasa, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.robocasa.robocasa import RoboCasa as RoboCasa
