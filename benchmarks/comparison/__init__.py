"""What `ppo_comparison.py` compares."""
