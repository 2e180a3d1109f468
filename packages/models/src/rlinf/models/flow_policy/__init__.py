"""A flow-matching policy on states, for learning and for checking what larger ones do."""

from rlinf.models.flow_policy.policy import FlowPolicyConfig as FlowPolicyConfig
