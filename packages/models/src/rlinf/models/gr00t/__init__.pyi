from rlinf.models.gr00t.policy import EMBODIMENTS as EMBODIMENTS
from rlinf.models.gr00t.policy import GR00TPolicyConfig as GR00TPolicyConfig
from rlinf.models.gr00t.shapes import BASE as BASE
from rlinf.models.gr00t.shapes import TINY as TINY
from rlinf.models.gr00t.shapes import GR00TShape as GR00TShape
from rlinf.models.gr00t.shapes import shape_of as shape_of
from rlinf.models.gr00t.weight_map import from_public as from_public
from rlinf.models.gr00t.weight_map import to_public as to_public
