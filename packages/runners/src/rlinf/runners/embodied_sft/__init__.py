"""Supervised fine-tuning of policies that act, on demonstrations; the loop is that of `rlinf.runners.sft`."""
