"""Genesis: a Franka arm, all environments in one batched scene."""

from rlinf.envs.genesis.genesis import Genesis as Genesis
