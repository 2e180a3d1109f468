"""Detection, on made-up trees of /proc, /sys and /dev."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.core.errors import ConfigError
from rlinf.scheduler import ClusterConfig, Node, VirtualAccelerators
from rlinf.scheduler.hardware import (
    ACCELERATORS,
    Accelerator,
    AmdGpu,
    AscendNpu,
    Device,
    IntelGpu,
    NvidiaGpu,
    detect,
    register_accelerator,
)
from rlinf.scheduler.memory_size import parse_memory

GIB = 2**30
KIND = {"NV_GPU": NvidiaGpu, "AMD_GPU": AmdGpu, "NPU": AscendNpu, "INTEL_GPU": IntelGpu}


def write(root: Path, path: str, text: str = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def nvidia(root: Path, count: int = 2) -> None:
    for i in range(count):
        facts = f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   10\nGPU UUID: \t GPU-{i}{i}-abc\nBus Location: \t 0000:{i + 1}0:00.0\n"
        write(root, f"proc/driver/nvidia/gpus/0000:{i + 1}0:00.0/information", facts)


def amd(root: Path, count: int = 2) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(root, f"{nodes}/0/gpu_id", "0\n")
    write(root, f"{nodes}/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
    for i in range(1, count + 1):
        write(root, f"{nodes}/{i}/gpu_id", f"{4000 + i}\n")
        write(root, f"{nodes}/{i}/name", "ip discovery\n")
        write(root, f"{nodes}/{i}/properties", f"simd_count 304\ndrm_render_minor {127 + i}\nunique_id {255 + i}\n")
        write(root, f"{nodes}/{i}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {192 * GIB}\nflags 0\n")
        write(root, f"{nodes}/{i}/mem_banks/1/properties", f"heap_type 4\nsize_in_bytes {7 * GIB}\n")
        write(root, f"sys/class/drm/renderD{127 + i}/device/product_name", "AMD Instinct MI300X\n")


def ascend(root: Path, numbers: tuple[int, ...] = (2, 10)) -> None:
    for name in ("_manager", *map(str, numbers)):
        write(root, f"dev/davinci{name}")


def intel(root: Path) -> None:
    for minor, address, vendor in (
        (128, "0000:00:02.0", "0x8086"),
        (129, "0000:4d:00.0", "0x8086"),
        (130, "0000:3a:00.0", "0x8086"),
    ):
        write(root, f"sys/devices/{address}/vendor", f"{vendor}\n")
        write(root, f"sys/devices/{address}/device", "0x0bd5\n")
        (root / f"sys/class/drm/renderD{minor}").mkdir(parents=True)
        (root / f"sys/class/drm/renderD{minor}/device").symlink_to(root / f"sys/devices/{address}")
    write(root, "sys/devices/0000:3a:00.0/drm/card1/lmem_total_bytes", f"{64 * GIB}\n")
    write(root, "sys/devices/0000:05:00.0/vendor", "0x1a03\n")
    (root / "sys/class/drm/renderD131").mkdir()
    (root / "sys/class/drm/renderD131/device").symlink_to(root / "sys/devices/0000:05:00.0")


def found(root: Path, **environ: str) -> Node:
    return detect(ClusterConfig(), root=root, environ=environ)


def ids(root: Path, **environ: str) -> list[str]:
    return [device.id for device in found(root, **environ).devices]


def test_nothing_is_there(tmp_path: Path) -> None:
    node = found(tmp_path, CUDA_VISIBLE_DEVICES="0,1")
    assert (node.accelerators, node.accelerator_type, node.virtual) == (0, "", False)
    assert node.describe().endswith("and no accelerator")


def test_nvidia_by_the_driver(tmp_path: Path) -> None:
    nvidia(tmp_path)
    node = found(tmp_path)
    assert (node.accelerator_type, node.accelerators) == ("NV_GPU", 2)
    assert node.devices[1] == Device(model="NVIDIA H100 80GB HBM3", id="1", uuid="GPU-11-abc")
    assert node.describe().endswith("and 2 NVIDIA GPUs (0-1)")


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("", []),
        ("-1", []),
        ("0,5,1", ["0"]),
        ("0,,1", ["0"]),
        ("1,1", ["1"]),
        ("GPU-11", ["1"]),
        (" 0 , 1 ", ["0", "1"]),
        ("GPU-", []),
        ("MIG-7f", ["MIG-7f"]),
        ("99999999999999999999", []),
    ],
)
def test_a_device_that_this_process_may_not_use_is_not_there(tmp_path: Path, variable: str, expected: list[str]) -> None:
    nvidia(tmp_path)
    assert ids(tmp_path, CUDA_VISIBLE_DEVICES=variable) == expected


def test_nvidia_smi_knows_the_memory(tmp_path: Path) -> None:
    nvidia(tmp_path)
    tool = write(tmp_path, "usr/bin/nvidia-smi", "#!/bin/sh\nprintf 'GPU-a, 81559, NVIDIA H100\\nGPU-b, [N/A], Odd, Name\\n'\n")
    tool.chmod(0o755)
    first, second = found(tmp_path).devices
    assert first == Device(model="NVIDIA H100", memory=81559 * 2**20, id="0", uuid="GPU-a")
    assert (second.model, second.memory) == ("Odd, Name", None)
    tool.write_text("#!/bin/sh\necho broken >&2\nexit 9\n")
    assert [device.uuid for device in found(tmp_path).devices] == ["GPU-00-abc", "GPU-11-abc"]


def test_nvidia_in_a_container_without_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "usr/bin/nvidia-smi", "#!/bin/sh\necho 'GPU-a, 100, Small'\n").chmod(0o755)
    assert found(tmp_path).accelerators == 0, "no driver"
    write(tmp_path, "dev/nvidiactl")
    assert found(tmp_path).accelerators == 1


def test_amd(tmp_path: Path) -> None:
    amd(tmp_path, 11)
    node = found(tmp_path)
    assert (node.accelerator_type, node.accelerators) == ("AMD_GPU", 11)
    assert node.devices[10] == Device(model="AMD Instinct MI300X", memory=192 * GIB, id="10", uuid=f"GPU-{255 + 11:016x}")
    assert ids(tmp_path, ROCR_VISIBLE_DEVICES="4,6,8", HIP_VISIBLE_DEVICES="2,0") == ["2", "0"]
    chosen = found(tmp_path, ROCR_VISIBLE_DEVICES="4,6,8", HIP_VISIBLE_DEVICES="2,0").devices
    assert [device.uuid for device in chosen] == [f"GPU-{255 + 9:016x}", f"GPU-{255 + 5:016x}"]


def test_amd_in_a_container_that_hides_a_card(tmp_path: Path) -> None:
    amd(tmp_path)
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/1/gpu_id").unlink()
    (tmp_path / "sys/class/drm/renderD129/device/product_name").unlink()
    (device,) = found(tmp_path).devices
    assert device.model == "ip discovery"


def test_ascend(tmp_path: Path) -> None:
    ascend(tmp_path)
    node = found(tmp_path)
    assert (node.accelerator_type, [device.uuid for device in node.devices]) == ("NPU", ["davinci2", "davinci10"])
    assert ids(tmp_path, ASCEND_RT_VISIBLE_DEVICES="1") == ["1"]


def test_intel_leaves_what_is_built_into_the_cpu(tmp_path: Path) -> None:
    intel(tmp_path)
    node = found(tmp_path)
    assert (node.accelerator_type, node.accelerators) == ("INTEL_GPU", 2)
    assert [device.memory for device in node.devices] == [64 * GIB, None]
    assert node.devices[0].model == "Intel GPU 0x0bd5"
    write(tmp_path, "sys/devices/0000:3a:00.0/drm/card1/lmem_total_bytes", "0123\n")
    assert found(tmp_path).devices[0].memory == 123
    assert ids(tmp_path, ONEAPI_DEVICE_SELECTOR="level_zero:1") == ["1"]
    assert ids(tmp_path, ONEAPI_DEVICE_SELECTOR="level_zero:*") == ["0", "1"]
    assert ids(tmp_path, ONEAPI_DEVICE_SELECTOR="*:gpu") == ["0", "1"]


def test_how_a_process_is_told() -> None:
    told = {name: kind().environment(["0", "3"]) for name, kind in KIND.items()}
    assert told == {
        "NV_GPU": {"CUDA_VISIBLE_DEVICES": "0,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        "AMD_GPU": {"HIP_VISIBLE_DEVICES": "0,3"},
        "NPU": {"ASCEND_RT_VISIBLE_DEVICES": "0,3"},
        "INTEL_GPU": {"ONEAPI_DEVICE_SELECTOR": "level_zero:0,3"},
    }
    assert all(ACCELERATORS.get(name) is kind for name, kind in KIND.items())


def test_one_kind_for_a_machine(tmp_path: Path) -> None:
    intel(tmp_path)
    amd(tmp_path)
    assert found(tmp_path).accelerator_type == "AMD_GPU"
    nvidia(tmp_path)
    assert found(tmp_path).accelerator_type == "NV_GPU"
    assert found(tmp_path, CUDA_VISIBLE_DEVICES="").accelerator_type == "AMD_GPU", "hidden is not there"


def test_a_stranger_registers_a_kind(tmp_path: Path) -> None:
    class Tpu(Accelerator):
        visible_devices = "TPU_VISIBLE_CHIPS"

        def detect(self, root: Path) -> tuple[Device, ...]:
            return tuple(Device(model="TPU") for _ in root.glob("dev/accel[0-9]*"))

    register_accelerator("Test_Tpu")(Tpu)
    for i in range(3):
        write(tmp_path, f"dev/accel{i}")
    node = found(tmp_path, TPU_VISIBLE_CHIPS="2,1")
    assert (node.accelerator_type, [device.id for device in node.devices]) == ("TEST_TPU", ["2", "1"])
    assert Tpu().environment(["2"]) == {"TPU_VISIBLE_CHIPS": "2"}


def test_virtual_accelerators_hide_the_real_ones(tmp_path: Path) -> None:
    nvidia(tmp_path)
    config = ClusterConfig(virtual_accelerators=VirtualAccelerators(count=3, memory="80 GiB", model="H100", cores=5))
    node = detect(config, root=tmp_path)
    assert (node.virtual, node.accelerators, node.cores) == (True, 3, 5)
    assert node.devices[2] == Device(model="H100", memory=80 * GIB)
    assert node.describe() == "1 node with 5 CPU cores and 3 virtual accelerators (0-2)"


def test_a_node_contradicts_itself() -> None:
    with pytest.raises(ConfigError, match="2 accelerators, but 1 described"):
        Node(cores=1, accelerators=2, virtual=False, devices=(Device(),))


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * GIB), ("80 gib", 80 * GIB), ("1.5KiB", 1536), ("2KB", 2000), ("7B", 7), ("3TB", 3 * 10**12), ("1PiB", 2**50)],
)
def test_memory_sizes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "0GiB", "0.1B", "-1GiB", "1e3GiB", "80Gb/s", "80GiBs"])
def test_no_memory_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="here"):
        parse_memory(text, place="here")
