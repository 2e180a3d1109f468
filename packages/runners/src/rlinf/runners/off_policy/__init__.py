"""Reinforcement learning of robots in simulation from a replay buffer."""
