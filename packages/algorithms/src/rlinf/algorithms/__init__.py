"""Advantages and losses of reinforcement learning as pure functions on tensors, and by name behind core's registry."""

from rlinf.algorithms.advantages import Gae as Gae
from rlinf.algorithms.advantages import gae as gae
from rlinf.algorithms.advantages import whiten as whiten
from rlinf.algorithms.losses import ActorCritic as ActorCritic
from rlinf.algorithms.losses import PPOClip as PPOClip
from rlinf.algorithms.losses import clipped_value_loss as clipped_value_loss
from rlinf.algorithms.losses import entropy_loss as entropy_loss
from rlinf.algorithms.losses import ppo_clip as ppo_clip
from rlinf.core import register_advantage as register_advantage
from rlinf.core import register_policy_loss as register_policy_loss
