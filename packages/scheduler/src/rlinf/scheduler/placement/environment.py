"""What a process must be told before it starts: its node group's variables, and which devices are its own."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.scheduler.hardware import ACCELERATORS, Inventory
from rlinf.scheduler.placement.strategies import ProcessPlan

PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "LIBRARY_PATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "CPATH")
"""Variables to which a node group adds, in front of what the process would inherit."""
MERGE_MODE = "RLINF_PATH_ENV_MERGE_MODE"
NET_DEVICES = "RLINF_COMM_NET_DEVICES"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_MODES = ("append", "override")
_PERSONAL = frozenset({"_", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER"}) | {
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONPYCACHEPREFIX",
    "RLINF_NODE_RANK",
}
"""What belongs to a shell, a user or a node; other nodes have their own."""
_PRIVATE_PREFIXES = ("PYTEST_", "RAY_", "SSH_", "TERM_", "XDG_")


def process_environment(inventory: Inventory, plan: ProcessPlan, *, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that a process gets beyond those that it inherits.

    Args:
        inventory: what the plan was made for.
        plan: where the process runs.
        inherited: what it would have otherwise. `RLINF_PATH_ENV_MERGE_MODE=override` in it makes
            a group's paths replace the inherited ones.

    Raises:
        ConfigError: the merge mode is none of the two.
    """
    variables = on_top(inventory.groups[plan.node_group].env_vars.get(plan.node, {}), inherited)
    node = inventory.nodes[plan.node]
    # Last: which devices are its own is not for a node group's variables to say.
    if plan.devices and not node.virtual and node.accelerator_type:
        ids = [device.id or str(index) for device, index in zip(plan.hardware, plan.local, strict=True)]
        variables.update(ACCELERATORS.get(node.accelerator_type)().environment(ids))
    return variables


def changes_since(started: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What somebody has set on the driver's node between `ray start` and the program, for the processes of all nodes.

    Args:
        started: the environment in which Ray was started on the driver's node.
        now: the driver's own environment.
    """
    private = {ACCELERATORS.get(name).visible_devices for name in ACCELERATORS.names()} | _PERSONAL
    return {
        name: value
        for name, value in now.items()
        if value != started.get(name) and name not in private and not name.startswith(_PRIVATE_PREFIXES)
    }


def on_top(changes: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Changes as they apply where an environment is inherited: paths go in front of those that are there.

    Raises:
        ConfigError: the merge mode is none of the two.
    """
    if _mode({**inherited, **changes}) == "override":
        return dict(changes)
    return {name: _in_front(value, inherited.get(name, "")) if name in PATHS else value for name, value in changes.items()}


def network_variables(inherited: Mapping[str, str], interface: str, *, spans_nodes: bool) -> dict[str, str]:
    """Which network interface collective libraries take, unless the process inherits that.

    Args:
        inherited: the environment of the process; `RLINF_COMM_NET_DEVICES` in it names the interface for all of them.
        interface: that with the node's address in the cluster; "" if nobody knows.
        spans_nodes: its group has ranks on other nodes. Gloo would take the address that the machine's name has, which may be
            nobody's.
    """
    named = inherited.get(NET_DEVICES)
    found = dict.fromkeys(_INTERFACES, named) if named else {_INTERFACES[0]: interface if spans_nodes else ""}
    return {name: value for name, value in found.items() if value and name not in inherited}


def process_interpreter(inventory: Inventory, plan: ProcessPlan) -> str | None:
    """The Python that a process runs with; None is that of its node."""
    return inventory.groups[plan.node_group].interpreters.get(plan.node)


def _mode(environment: Mapping[str, str]) -> str:
    mode = environment.get(MERGE_MODE, "append")
    if mode not in _MODES:
        raise ConfigError(MERGE_MODE, f"no mode '{mode}'", did_you_mean(mode, _MODES, label="Modes"))
    return mode


def _in_front(new: str, old: str) -> str:
    """The paths of both, each once."""
    return os.pathsep.join(dict.fromkeys(path for path in (*new.split(os.pathsep), *old.split(os.pathsep)) if path))
