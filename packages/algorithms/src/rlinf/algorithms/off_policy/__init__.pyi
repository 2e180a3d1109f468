from rlinf.algorithms.off_policy.awac import AWAC as AWAC
from rlinf.algorithms.off_policy.cql import CQL as CQL
from rlinf.algorithms.off_policy.crossq import CrossQ as CrossQ
from rlinf.algorithms.off_policy.dqn import DQN as DQN
from rlinf.algorithms.off_policy.iql import IQL as IQL
from rlinf.algorithms.off_policy.sac import SAC as SAC
from rlinf.algorithms.off_policy.td3 import RLTTD3 as RLTTD3
from rlinf.algorithms.off_policy.td3 import TD3 as TD3
