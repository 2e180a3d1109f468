"""Robot simulators as vector environments under one honest contract."""

from rlinf.core.registry import register_env as register_env
from rlinf.envs.names import get_env_cls as get_env_cls

# isort: split
from rlinf.envs.behavior import Behavior as Behavior
from rlinf.envs.calvin import Calvin as Calvin
from rlinf.envs.custom import Custom as Custom
from rlinf.envs.envpool import EnvPool as EnvPool
from rlinf.envs.franka import Franka as Franka
from rlinf.envs.frankasim import FrankaSim as FrankaSim
from rlinf.envs.genesis import Genesis as Genesis
from rlinf.envs.gymnasium import Gymnasium as Gymnasium
from rlinf.envs.habitat import Habitat as Habitat
from rlinf.envs.isaaclab import IsaacLab as IsaacLab
from rlinf.envs.libero import Libero as Libero
from rlinf.envs.maniskill import ManiSkill as ManiSkill
from rlinf.envs.metaworld import MetaWorld as MetaWorld
from rlinf.envs.parallel import Parallel as Parallel
from rlinf.envs.remote import Remote as Remote
from rlinf.envs.robocasa import RoboCasa as RoboCasa
from rlinf.envs.robosuite import Robosuite as Robosuite
from rlinf.envs.robotwin import RoboTwin as RoboTwin
from rlinf.envs.tabletop import Tabletop as Tabletop
from rlinf.envs.world_model import WorldModel as WorldModel

# isort: split
from rlinf.envs.chunks import ChunkStep as ChunkStep
from rlinf.envs.chunks import chunk_step as chunk_step
from rlinf.envs.evaluation import evaluate as evaluate
from rlinf.envs.foreign import from_vector_env as from_vector_env
from rlinf.envs.groups import GroupReset as GroupReset
from rlinf.envs.guard import EnvMisuse as EnvMisuse
from rlinf.envs.images import Augmentation as Augmentation
from rlinf.envs.images import AugmentImages as AugmentImages
from rlinf.envs.images import ResizeImages as ResizeImages
from rlinf.envs.latency import Latency as Latency
from rlinf.envs.offline import Minari as Minari
from rlinf.envs.outward import as_single_env as as_single_env
from rlinf.envs.outward import with_autoreset as with_autoreset
from rlinf.envs.recording import RecordEpisodes as RecordEpisodes
from rlinf.envs.recording import Recording as Recording
from rlinf.envs.rewards import ShapedReward as ShapedReward
from rlinf.envs.video import RecordVideo as RecordVideo
