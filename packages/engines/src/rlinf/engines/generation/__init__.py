"""Engines that write text: token ids in, token ids out."""

from rlinf.engines.generation.hf import HFGeneratorConfig as HFGeneratorConfig
