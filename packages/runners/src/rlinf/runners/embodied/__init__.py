"""Reinforcement learning of robots in simulation."""
