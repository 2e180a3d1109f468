"""What engines reserve of a device, by what they are told: no engine is started here."""

import torch
from generation_toy import ToyWriter

from rlinf.engines.generation import SGLangGeneratorConfig, VLLMGeneratorConfig
from rlinf.engines.generation._sglang import memory as of_sglang
from rlinf.engines.generation._vllm import memory as of_vllm

GIB = 1 << 30


def test_on_a_cpu_the_cache_is_beside_the_weights(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    policy = ToyWriter()
    weights = sum(each.nbytes for each in policy.network.parameters())
    assert of_vllm(VLLMGeneratorConfig(cpu_cache_gib=3), policy) == {"parameters": weights, "cache": 3 * GIB}
    own = policy.network.config
    token = 2 * own.num_hidden_layers * own.num_key_value_heads * own.head_dim * 4
    assert of_sglang(SGLangGeneratorConfig(max_cached_tokens=100), policy) == {"parameters": weights, "cache": 100 * token}
    assert of_sglang(SGLangGeneratorConfig(), policy)["cache"] == 32768 * token


def test_on_gpus_it_is_a_share_of_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 80 * GIB))
    policy = ToyWriter()
    assert of_vllm(VLLMGeneratorConfig(gpu_memory_utilization=0.5), policy) == {"cache": 40 * GIB}
    told = VLLMGeneratorConfig(tensor_parallel_size=2, engine_args={"gpu_memory_utilization": 0.25})
    assert of_vllm(told, policy) == {"cache": 40 * GIB}
    assert of_sglang(SGLangGeneratorConfig(mem_fraction_static=0.75, device="cuda"), policy) == {"cache": 60 * GIB}
