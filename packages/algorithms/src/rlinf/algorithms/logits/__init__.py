"""Log-probabilities and entropies of tokens, without a second copy of the logits."""

from rlinf.algorithms.logits.entropy import entropy_from_logits as entropy_from_logits
from rlinf.algorithms.logits.linear import logprob_from_hidden as logprob_from_hidden
from rlinf.algorithms.logits.logprob import logprob_and_entropy_from_logits as logprob_and_entropy_from_logits
from rlinf.algorithms.logits.logprob import logprob_from_logits as logprob_from_logits
