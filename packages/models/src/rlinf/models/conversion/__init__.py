"""`rlinf convert`: checkpoints as other programs have them, and back."""
