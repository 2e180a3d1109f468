"""Isaac Lab, written to its documentation and tested against a fake."""

from rlinf.envs.unverified.isaaclab.isaaclab import IsaacLab as IsaacLab
