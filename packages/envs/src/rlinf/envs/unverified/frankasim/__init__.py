"""SERL's Franka simulation, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.frankasim.frankasim import FrankaSim as FrankaSim
