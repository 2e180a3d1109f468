"""ManiSkill 3: its tasks on a CPU, one simulation for each environment, or batched on a GPU."""

from rlinf.envs.maniskill.maniskill import ManiSkill as ManiSkill
