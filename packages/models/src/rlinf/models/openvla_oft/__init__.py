"""OpenVLA-OFT: a whole chunk of actions in one forward pass."""

from rlinf.models.openvla_oft.policy import ActionHead as ActionHead
from rlinf.models.openvla_oft.policy import OpenVLAOFTPolicyConfig as OpenVLAOFTPolicyConfig
