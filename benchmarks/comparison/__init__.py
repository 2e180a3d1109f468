"""What `ppo_comparison.py` and `off_policy_comparison.py` compare."""
