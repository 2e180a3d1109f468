"""Recorded episodes as arrays: LeRobot's datasets, Minari's, NumPy files, and what runs collected."""

from rlinf.core.data.offline import OfflineEpisode as OfflineEpisode
from rlinf.envs.offline.episodes import Transitions as Transitions
from rlinf.envs.offline.episodes import transitions as transitions
from rlinf.envs.offline.lerobot import LeRobot as LeRobot
from rlinf.envs.offline.minari import Minari as Minari
from rlinf.envs.offline.minari import minari_name as minari_name
from rlinf.envs.offline.numpy_files import NumpyEpisodes as NumpyEpisodes
from rlinf.envs.offline.replay import Replay as Replay
