from rlinf.algorithms.off_policy.dqn import DQN as DQN
from rlinf.algorithms.off_policy.sac import SAC as SAC
from rlinf.algorithms.off_policy.td3 import TD3 as TD3
