"""The contract of engines that write text: the examiner, and its lines by subject."""

from rlinf.core.testing.generator.contract import CHECKS as CHECKS
from rlinf.core.testing.generator.contract import GeneratorContract as GeneratorContract
