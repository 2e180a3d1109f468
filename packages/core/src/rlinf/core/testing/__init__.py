"""The published contract suites: tests that our own parts and any other plug-in run alike."""

from rlinf.core.testing.advantage import AdvantageContract as AdvantageContract
from rlinf.core.testing.env import EnvContract as EnvContract
from rlinf.core.testing.generator import GeneratorContract as GeneratorContract
from rlinf.core.testing.loss import LossContract as LossContract
from rlinf.core.testing.policy import PolicyContract as PolicyContract
