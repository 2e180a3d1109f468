from rlinf.models.openvla.architecture import PrismaticConfig as PrismaticConfig
from rlinf.models.openvla.architecture import TextConfig as TextConfig
from rlinf.models.openvla.architecture import VisionConfig as VisionConfig
from rlinf.models.openvla.bins import ActionBins as ActionBins
from rlinf.models.openvla.policy import OpenVLAPolicyConfig as OpenVLAPolicyConfig
