"""Policies whose log-probabilities can be trusted, behind one interface."""

from rlinf.core import register_model as register_model
from rlinf.models.action_tokens import FastActionTokenizer as FastActionTokenizer
from rlinf.models.base import BasePolicy as BasePolicy
from rlinf.models.checkpoints import load_policy as load_policy
from rlinf.models.checkpoints import load_weights as load_weights
from rlinf.models.checkpoints import save_policy as save_policy
from rlinf.models.dsrl import DSRLPolicyConfig as DSRLPolicyConfig
from rlinf.models.flow import FlowSampling as FlowSampling
from rlinf.models.flow_policy import FlowPolicyConfig as FlowPolicyConfig
from rlinf.models.gr00t import GR00TPolicyConfig as GR00TPolicyConfig
from rlinf.models.language import CausalLMConfig as CausalLMConfig
from rlinf.models.language import VisionLanguageConfig as VisionLanguageConfig
from rlinf.models.lora import LoRAConfig as LoRAConfig
from rlinf.models.lora import apply_lora as apply_lora
from rlinf.models.normalization import Normalizer as Normalizer
from rlinf.models.observations.images import to_pixels as to_pixels
from rlinf.models.openvla import OpenVLAPolicyConfig as OpenVLAPolicyConfig
from rlinf.models.openvla_oft import OpenVLAOFTPolicyConfig as OpenVLAOFTPolicyConfig
from rlinf.models.pi0 import PI0PolicyConfig as PI0PolicyConfig
from rlinf.models.pi0 import PI05PolicyConfig as PI05PolicyConfig
from rlinf.models.registry import get_model as get_model
from rlinf.models.small.cma import CMAPolicyConfig as CMAPolicyConfig
from rlinf.models.small.cnn import CNNPolicyConfig as CNNPolicyConfig
from rlinf.models.small.mlp import MLPPolicyConfig as MLPPolicyConfig
from rlinf.models.statistics import compute_statistics as compute_statistics
from rlinf.models.statistics import read_statistics as read_statistics
