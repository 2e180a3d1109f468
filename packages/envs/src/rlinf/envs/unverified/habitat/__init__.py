"""Habitat, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.habitat.habitat import Habitat as Habitat
