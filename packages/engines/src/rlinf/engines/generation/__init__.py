"""Engines that write text: token ids in, token ids out."""

from rlinf.engines.generation.hf.generator import HFGeneratorConfig as HFGeneratorConfig
from rlinf.engines.generation.openai import OpenAIGeneratorConfig as OpenAIGeneratorConfig
from rlinf.engines.generation.sglang import SGLangGeneratorConfig as SGLangGeneratorConfig
from rlinf.engines.generation.vllm import VLLMGeneratorConfig as VLLMGeneratorConfig
