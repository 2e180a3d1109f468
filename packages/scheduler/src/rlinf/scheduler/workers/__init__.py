"""Workers: their groups, calls, ranks, locks and logs."""
