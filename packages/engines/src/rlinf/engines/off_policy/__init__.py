"""Off-policy training: an optimizer for each part of a policy, and target weights."""
