"""What watches over a run: that rollout and trainer agree, that weights are the same, that numbers are finite."""

from rlinf.engines.guards.causes import Cause as Cause
from rlinf.engines.guards.causes import Scores as Scores
from rlinf.engines.guards.causes import likely_causes as likely_causes
from rlinf.engines.guards.drift import LargestBound as LargestBound
from rlinf.engines.guards.drift import drift as drift
from rlinf.engines.guards.fingerprint import Fingerprint as Fingerprint
from rlinf.engines.guards.finite import FiniteWatch as FiniteWatch
from rlinf.engines.guards.gate import StepZeroError as StepZeroError
from rlinf.engines.guards.gate import StepZeroGate as StepZeroGate
