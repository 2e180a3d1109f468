"""What evaluations of all kinds of runs share."""
