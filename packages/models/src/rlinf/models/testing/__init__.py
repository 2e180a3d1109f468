"""What tests of policies need: made-up weights that two implementations can share."""

from rlinf.models.testing.weights import made_up_weights as made_up_weights
