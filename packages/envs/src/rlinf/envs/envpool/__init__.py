"""EnvPool: many of Gymnasium's environments, stepped by threads in C++."""

from rlinf.envs.envpool.envpool import EnvPool as EnvPool
