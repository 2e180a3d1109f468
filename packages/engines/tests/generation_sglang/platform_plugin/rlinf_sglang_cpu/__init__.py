"""A platform of SGLang that needs no kernels of its own; installed where SGLang is tested on a CPU."""


def activate() -> str:
    """What SGLang asks a platform plug-in for: the path of the class."""
    return "rlinf_sglang_cpu.platform.CpuNativePlatform"


def hook() -> None:
    """Deterministic inference replaces sums by kernels of Triton, which a CPU can't run; what is wanted of it here is seeds."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    name = "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode"
    HookRegistry.register(name, lambda runner: None, HookType.REPLACE)
