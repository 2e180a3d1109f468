"""LIBERO: suites of language-conditioned tasks of a Franka arm, on robosuite."""

from rlinf.envs.libero.libero import Libero as Libero
