"""Experience that is used more than once: a buffer of transitions, and how it is sampled."""

from rlinf.core.replay.buffer import ReplayBuffer as ReplayBuffer
from rlinf.core.replay.episodes import episode_rows as episode_rows
from rlinf.core.replay.episodes import within_bounds as within_bounds
from rlinf.core.replay.recorded import RecordedTransitions as RecordedTransitions
from rlinf.core.replay.sampling import Sampling as Sampling
from rlinf.core.replay.saved import SavedBuffer as SavedBuffer
from rlinf.core.replay.sizes import available_memory as available_memory
from rlinf.core.replay.sizes import bytes_of_observation as bytes_of_observation
from rlinf.core.replay.sizes import bytes_of_slot as bytes_of_slot
from rlinf.core.replay.transitions import Transitions as Transitions
