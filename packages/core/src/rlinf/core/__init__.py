"""The words that RLinf's libraries share: data, protocols, the registry, typed configuration, errors."""

from rlinf.core.arrays import Array as Array
from rlinf.core.config import read as read
from rlinf.core.data import ArraySpec as ArraySpec
from rlinf.core.data import Completion as Completion
from rlinf.core.data import Decision as Decision
from rlinf.core.data import EnvSpec as EnvSpec
from rlinf.core.data import Evaluation as Evaluation
from rlinf.core.data import LossOutput as LossOutput
from rlinf.core.data import Weights as Weights
from rlinf.core.futures import gather as gather
from rlinf.core.metrics import Metric as Metric
from rlinf.core.random import keyed_generator as keyed_generator
from rlinf.core.random import keyed_seed as keyed_seed
from rlinf.core.registry import Registry as Registry
from rlinf.core.registry import register_advantage as register_advantage
from rlinf.core.registry import register_env as register_env
from rlinf.core.registry import register_model as register_model
from rlinf.core.registry import register_policy_loss as register_policy_loss
from rlinf.core.registry import register_reward as register_reward
from rlinf.core.trajectory import Batch as Batch
from rlinf.core.trajectory import Credit as Credit
from rlinf.core.trajectory import Trajectory as Trajectory
from rlinf.core.tree import Tree as Tree
from rlinf.core.tree import tree_map as tree_map
from rlinf.core.worker import Worker as Worker
from rlinf.core.worker import WorkerContext as WorkerContext
