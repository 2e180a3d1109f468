from rlinf.engines.guards.causes import Cause as Cause
from rlinf.engines.guards.causes import Scores as Scores
from rlinf.engines.guards.causes import likely_causes as likely_causes
from rlinf.engines.guards.finite import FiniteWatch as FiniteWatch
from rlinf.engines.guards.gap import LargestBound as LargestBound
from rlinf.engines.guards.gap import drift as drift
from rlinf.engines.guards.gate import StepZeroError as StepZeroError
from rlinf.engines.guards.gate import StepZeroGate as StepZeroGate
