"""How credit is assigned to decisions."""

from rlinf.algorithms.advantages.gae import Gae as Gae
from rlinf.algorithms.advantages.gae import gae as gae
from rlinf.algorithms.advantages.whiten import whiten as whiten
