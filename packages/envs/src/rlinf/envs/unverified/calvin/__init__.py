"""CALVIN, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.calvin.calvin import Calvin as Calvin
