"""Robot simulators as vector environments under one honest contract."""

from rlinf.core.registry import register_env as register_env
from rlinf.envs.compat import get_env_cls as get_env_cls

# isort: split
from rlinf.envs.envpool.envpool import EnvPool as EnvPool
from rlinf.envs.genesis.genesis import Genesis as Genesis
from rlinf.envs.gymnasium.gymnasium import Gymnasium as Gymnasium
from rlinf.envs.interop.custom import Custom as Custom
from rlinf.envs.libero.libero import Libero as Libero
from rlinf.envs.maniskill.maniskill import ManiSkill as ManiSkill
from rlinf.envs.metaworld.metaworld import MetaWorld as MetaWorld
from rlinf.envs.parallel import Parallel as Parallel
from rlinf.envs.remote import Remote as Remote
from rlinf.envs.robosuite.robosuite import Robosuite as Robosuite
from rlinf.envs.tabletop import Tabletop as Tabletop
from rlinf.envs.unverified.behavior.behavior import Behavior as Behavior
from rlinf.envs.unverified.calvin.calvin import Calvin as Calvin
from rlinf.envs.unverified.frankasim.frankasim import FrankaSim as FrankaSim
from rlinf.envs.unverified.habitat.habitat import Habitat as Habitat
from rlinf.envs.unverified.isaaclab.isaaclab import IsaacLab as IsaacLab
from rlinf.envs.unverified.robocasa.robocasa import RoboCasa as RoboCasa
from rlinf.envs.unverified.robotwin.robotwin import RoboTwin as RoboTwin
from rlinf.envs.world_model.world_model import WorldModel as WorldModel

# isort: split
from rlinf.core.envs.chunks import ChunkStep as ChunkStep
from rlinf.core.envs.chunks import chunk_step as chunk_step
from rlinf.envs.evaluation import evaluate as evaluate
from rlinf.envs.interop.from_gymnasium import from_vector_env as from_vector_env
from rlinf.envs.interop.to_gymnasium import as_single_env as as_single_env
from rlinf.envs.interop.to_gymnasium import with_autoreset as with_autoreset
from rlinf.envs.offline.minari import Minari as Minari
from rlinf.envs.recording import RecordEpisodes as RecordEpisodes
from rlinf.envs.recording import Recording as Recording
from rlinf.envs.wrappers.contract import EnvMisuse as EnvMisuse
from rlinf.envs.wrappers.groups import GroupReset as GroupReset
from rlinf.envs.wrappers.images import Augmentation as Augmentation
from rlinf.envs.wrappers.images import AugmentImages as AugmentImages
from rlinf.envs.wrappers.images import ResizeImages as ResizeImages
from rlinf.envs.wrappers.latency import Latency as Latency
from rlinf.envs.wrappers.rewards import ShapedReward as ShapedReward
from rlinf.envs.wrappers.video import RecordVideo as RecordVideo
