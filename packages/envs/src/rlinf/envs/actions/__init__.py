"""Actions between the conventions of models and simulators: pure functions on NumPy, chosen by name."""

from rlinf.envs.actions.arrays import ActionError as ActionError
from rlinf.envs.actions.formats import ACTION_FORMATS as ACTION_FORMATS
from rlinf.envs.actions.formats import ActionFormat as ActionFormat
from rlinf.envs.actions.formats import Chain as Chain
from rlinf.envs.actions.formats import Gripper as Gripper
from rlinf.envs.actions.formats import Identity as Identity
from rlinf.envs.actions.formats import Pick as Pick
from rlinf.envs.actions.formats import Rotation as Rotation
from rlinf.envs.actions.formats import Unscale as Unscale
from rlinf.envs.actions.formats import register_action_format as register_action_format
from rlinf.envs.actions.grippers import binarise as binarise
from rlinf.envs.actions.grippers import convert_gripper as convert_gripper
from rlinf.envs.actions.rotations import convert_rotation as convert_rotation
from rlinf.envs.actions.scaling import from_unit as from_unit
from rlinf.envs.actions.scaling import to_unit as to_unit
from rlinf.envs.actions.simulators import calvin as calvin
from rlinf.envs.actions.simulators import franka_sim as franka_sim
from rlinf.envs.actions.simulators import libero as libero
from rlinf.envs.actions.simulators import maniskill as maniskill
from rlinf.envs.actions.simulators import maniskill_panda as maniskill_panda
from rlinf.envs.actions.simulators import metaworld as metaworld
from rlinf.envs.actions.simulators import roboverse as roboverse
