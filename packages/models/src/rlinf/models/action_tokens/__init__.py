"""Actions as tokens of a language model."""

from rlinf.models.action_tokens.fast import FastActionTokenizer as FastActionTokenizer
