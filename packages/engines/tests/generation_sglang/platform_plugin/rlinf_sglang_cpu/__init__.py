"""A platform of SGLang that needs no kernels of its own; installed where SGLang is tested on a CPU."""


def activate() -> str:
    """What SGLang asks a platform plug-in for: the path of the class."""
    return "rlinf_sglang_cpu.platform.CpuNativePlatform"


def hook() -> None:
    """Deterministic inference wants kernels that are not there: for sums, which may round as they like here, and for seeds."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    replaced = {
        "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode": lambda runner: None,
        "sglang.srt.layers.sampler.multinomial_with_seed": multinomial_with_seed,
    }
    for name, function in replaced.items():
        HookRegistry.register(name, function, HookType.REPLACE)


def multinomial_with_seed(logprobs, seed, positions):
    """`[n, 1]`, a column of each row of log-probabilities `[n, m]`: Gumbel noise from the row's seed and position, each `[n]`."""
    import numpy as np
    import torch

    rows = []
    for one, at in zip(seed.tolist(), positions.tolist(), strict=True):
        random = np.random.Generator(np.random.Philox(key=[one % 2**64, at]))
        rows.append(random.gumbel(size=logprobs.shape[1]))
    return (logprobs.double() + torch.from_numpy(np.stack(rows))).argmax(1, keepdim=True)
