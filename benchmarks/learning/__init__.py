"""One small loop for the learning benchmarks: imitate demonstrations, then improve on-policy, and say honestly what was reached."""
