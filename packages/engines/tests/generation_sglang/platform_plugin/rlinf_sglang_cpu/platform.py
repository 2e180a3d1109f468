"""The platform; imports SGLang."""

from sglang.srt.arg_groups.choices import DETERMINISTIC_ATTENTION_BACKEND_CHOICES
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class CpuNativePlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU, and torch."""

    _enum = PlatformEnum.OOT

    def apply_server_args_defaults(self, server_args) -> None:
        """torch's attention reads a sequence at a time, in the same way whatever is beside it."""
        if "torch_native" not in DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
            DETERMINISTIC_ATTENTION_BACKEND_CHOICES.append("torch_native")

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def is_pin_memory_available(self, device=None) -> bool:
        return False
