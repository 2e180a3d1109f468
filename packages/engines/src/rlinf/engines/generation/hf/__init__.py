"""Writing text with any causal language model of transformers, in this process."""

from rlinf.engines.generation.hf.generator import HFGeneratorConfig as HFGeneratorConfig
