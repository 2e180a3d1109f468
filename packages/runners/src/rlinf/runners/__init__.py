"""Workers, loops, run configuration, metrics, checkpoints and reports."""

from rlinf.runners.actor_worker import EmbodiedFSDPActor as EmbodiedFSDPActor
from rlinf.runners.checkpoint import Checkpoint as Checkpoint
from rlinf.runners.checkpoint import read_checkpoint as read_checkpoint
from rlinf.runners.checkpoint import write_checkpoint as write_checkpoint
from rlinf.runners.composition import parse_command_line as parse_command_line
from rlinf.runners.embodied_runner import EmbodiedRunner as EmbodiedRunner
from rlinf.runners.entry import run_app as run_app
from rlinf.runners.env_worker import EnvWorker as EnvWorker
from rlinf.runners.evaluation_runner import EmbodiedEvalRunner as EmbodiedEvalRunner
from rlinf.runners.reading import read_embodied as read_embodied
from rlinf.runners.rollout_worker import MultiStepRolloutWorker as MultiStepRolloutWorker
from rlinf.runners.run_folder import RunFolder as RunFolder
from rlinf.runners.run_folder import open_run_folder as open_run_folder
from rlinf.runners.run_folder import run_folder as run_folder
from rlinf.runners.schema import EmbodiedConfig as EmbodiedConfig
