"""A flow-matching policy on states, for learning and for checking what larger ones do."""

from rlinf.models.flow_policy.config import FlowPolicyConfig as FlowPolicyConfig
