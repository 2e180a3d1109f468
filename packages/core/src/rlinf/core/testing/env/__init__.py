"""The contract of vector environments: the examiner, and its lines by subject."""

from rlinf.core.testing.env.contract import CHECKS as CHECKS
from rlinf.core.testing.env.contract import EnvContract as EnvContract
from rlinf.core.testing.finding import Finding as Finding
