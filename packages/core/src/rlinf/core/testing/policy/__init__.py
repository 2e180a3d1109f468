"""The contract of policies: the examiner, and its lines by subject."""

from rlinf.core.testing.policy.contract import CHECKS as CHECKS
from rlinf.core.testing.policy.contract import PolicyContract as PolicyContract
