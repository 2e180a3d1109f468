"""What an engine minimises: sums over decisions, and the weight to divide them by."""

from rlinf.algorithms.losses.actor_critic import ActorCritic as ActorCritic
from rlinf.algorithms.losses.entropy import entropy_loss as entropy_loss
from rlinf.algorithms.losses.ppo import PPOClip as PPOClip
from rlinf.algorithms.losses.ppo import ppo_clip as ppo_clip
from rlinf.algorithms.losses.value import clipped_value_loss as clipped_value_loss
