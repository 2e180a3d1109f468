"""Environments of the library verifiers."""

from rlinf.envs.verifiers.tasks import Verifiers as Verifiers
