"""Policies whose log-probabilities can be trusted, behind one interface."""

from rlinf.core import register_model as register_model
from rlinf.models.base import BasePolicy as BasePolicy
from rlinf.models.mlp import MLPPolicyConfig as MLPPolicyConfig
