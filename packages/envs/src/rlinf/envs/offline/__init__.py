"""Recorded episodes as arrays, such as those of Minari."""

from rlinf.envs.offline.episodes import OfflineEpisode as OfflineEpisode
from rlinf.envs.offline.episodes import OfflineSource as OfflineSource
from rlinf.envs.offline.episodes import Transitions as Transitions
from rlinf.envs.offline.episodes import transitions as transitions
from rlinf.envs.offline.minari import Minari as Minari
from rlinf.envs.offline.minari import minari_name as minari_name
