"""Small policies that build anywhere: of states (`mlp_policy`), of images (`cnn_policy`), with memory and instructions (`cma`)."""

from rlinf.models.small.cma import CMAPolicyConfig as CMAPolicyConfig
from rlinf.models.small.cnn import CNNPolicyConfig as CNNPolicyConfig
from rlinf.models.small.mlp import MLPPolicyConfig as MLPPolicyConfig
