"""Evaluation: a protocol, its work-list, and the report; the same for training, `eval.py` and an environment of one's own."""

from rlinf.core.evaluation.canonical import canonical as canonical
from rlinf.core.evaluation.canonical import canonical_hash as canonical_hash
from rlinf.core.evaluation.intervals import Difference as Difference
from rlinf.core.evaluation.intervals import Mean as Mean
from rlinf.core.evaluation.intervals import Rate as Rate
from rlinf.core.evaluation.intervals import t_interval as t_interval
from rlinf.core.evaluation.intervals import wilson_interval as wilson_interval
from rlinf.core.evaluation.playing import EpisodePlayer as EpisodePlayer
from rlinf.core.evaluation.playing import Turn as Turn
from rlinf.core.evaluation.protocol import EpisodeProtocol as EpisodeProtocol
from rlinf.core.evaluation.protocol import EvalProtocol as EvalProtocol
from rlinf.core.evaluation.protocol import ProblemProtocol as ProblemProtocol
from rlinf.core.evaluation.protocol import RealTimeChunking as RealTimeChunking
from rlinf.core.evaluation.report import EvalReport as EvalReport
from rlinf.core.evaluation.report import Row as Row
from rlinf.core.evaluation.report import mean_values as mean_values
from rlinf.core.evaluation.results import EpisodeKey as EpisodeKey
from rlinf.core.evaluation.results import EpisodeResult as EpisodeResult
from rlinf.core.evaluation.results import ProblemResult as ProblemResult
from rlinf.core.evaluation.results import initial_state_seed as initial_state_seed
from rlinf.core.evaluation.results import pass_at_k as pass_at_k
