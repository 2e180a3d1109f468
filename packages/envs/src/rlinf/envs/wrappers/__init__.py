"""Wrappers of vector environments: the contract enforced, statistics, group resets, images, delays, rewards, videos."""

from rlinf.envs.wrappers.contract import EnforceContract as EnforceContract
from rlinf.envs.wrappers.contract import EnvMisuse as EnvMisuse
from rlinf.envs.wrappers.episodes import EpisodeStatistics as EpisodeStatistics
from rlinf.envs.wrappers.groups import GroupReset as GroupReset
from rlinf.envs.wrappers.images import Augmentation as Augmentation
from rlinf.envs.wrappers.images import AugmentImages as AugmentImages
from rlinf.envs.wrappers.images import ResizeImages as ResizeImages
from rlinf.envs.wrappers.latency import Latency as Latency
from rlinf.envs.wrappers.rewards import ShapedReward as ShapedReward
from rlinf.envs.wrappers.video import RecordVideo as RecordVideo
