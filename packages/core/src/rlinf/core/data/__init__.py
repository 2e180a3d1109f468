"""The data that parts exchange: frozen, batch-major and complete; and the arrays and trees that it is made of."""

from rlinf.core.data.trajectory import Batch as Batch
from rlinf.core.data.trajectory import Credit as Credit
from rlinf.core.data.trajectory import Trajectory as Trajectory
from rlinf.core.data.types import ArraySpec as ArraySpec
from rlinf.core.data.types import Completion as Completion
from rlinf.core.data.types import Decision as Decision
from rlinf.core.data.types import EnvSpec as EnvSpec
from rlinf.core.data.types import LossOutput as LossOutput
from rlinf.core.data.types import Rescored as Rescored
from rlinf.core.data.types import Scores as Scores
from rlinf.core.data.types import Weights as Weights
