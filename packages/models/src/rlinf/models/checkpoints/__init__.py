"""Policies on disk: our own folder, and those of Hugging Face, LeRobot and RLinf. Nothing is unpickled but tensors."""

from rlinf.models.checkpoints.exporting import export_full_weights as export_full_weights
from rlinf.models.checkpoints.exporting import export_like as export_like
from rlinf.models.checkpoints.exporting import inverse_names as inverse_names
from rlinf.models.checkpoints.fitting import Fitted as Fitted
from rlinf.models.checkpoints.fitting import fit as fit
from rlinf.models.checkpoints.loading import load_weights as load_weights
from rlinf.models.checkpoints.policies import load_policy as load_policy
from rlinf.models.checkpoints.policies import save_policy as save_policy
from rlinf.models.checkpoints.tensors import read_tensors as read_tensors
from rlinf.models.checkpoints.tensors import write_tensors as write_tensors
from rlinf.models.checkpoints.weight_map import Drop as Drop
from rlinf.models.checkpoints.weight_map import Rename as Rename
from rlinf.models.checkpoints.weight_map import Split as Split
from rlinf.models.checkpoints.weight_map import WeightMap as WeightMap
