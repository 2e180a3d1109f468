from rlinf.runners.sft.actor_worker import SFTActor as SFTActor
from rlinf.runners.sft.reward_model_worker import RewardModelActor as RewardModelActor
from rlinf.runners.sft.rules import read_sft as read_sft
from rlinf.runners.sft.runner import SFTRunner as SFTRunner
from rlinf.runners.sft.schema import RewardModelConfig as RewardModelConfig
from rlinf.runners.sft.schema import SFTConfig as SFTConfig
from rlinf.runners.sft.warm_starts import warm_start as warm_start
