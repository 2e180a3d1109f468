"""`take_inventory`: the inventory that a configuration and the machines make together, every fault of it reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlinf.core.config import read
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.scheduler.config import ClusterConfig
from rlinf.scheduler.hardware.detection import detect, virtual_nodes
from rlinf.scheduler.hardware.inventory import Inventory, NodeGroup
from rlinf.scheduler.hardware.node import ACCELERATOR, Device, Node
from rlinf.scheduler.hardware.registry import HARDWARE, identity
from rlinf.scheduler.node_groups import HardwareConfig, NodeGroupConfig
from rlinf.scheduler.ranks import format_ranks, parse_ranks

PLACE = "cluster.node_groups"


def take_inventory(config: ClusterConfig, nodes: Sequence[Node] | None = None) -> Inventory:
    """The nodes of a cluster, with the groups and the hardware that its configuration adds.

    Args:
        config: the cluster's section.
        nodes: what was found on each node, by rank; None takes `virtual_accelerators`, or looks at this machine, which then stands
            for all nodes: node 0 has its accelerators, the others have its cores alone.

    Raises:
        ConfigError: with one line for each fault of `node_groups`.
    """
    if nodes is None:
        nodes = virtual_nodes(config) or _imagined(config)
    return _Listing(config, nodes).inventory()


def _imagined(config: ClusterConfig) -> tuple[Node, ...]:
    here = detect(config)
    others = (Node(rank=rank, cores=here.cores, accelerators=0, virtual=False) for rank in range(1, config.num_nodes))
    return (here, *others)


class _Listing:
    """Reads the groups one by one, and remembers every fault."""

    def __init__(self, config: ClusterConfig, nodes: Sequence[Node]) -> None:
        self._groups = config.node_groups
        self._nodes = nodes
        self._faults: list[ConfigError] = []
        self._hardware: list[dict[str, list[Device]]] = [{} for _ in nodes]
        self._pieces: dict[tuple[object, ...], str] = {}
        """Where each piece of hardware was declared first."""
        self._spellings = {ACCELERATOR.casefold(): ACCELERATOR}
        for node in nodes:
            self._spellings.setdefault(node.accelerator_type.casefold(), node.accelerator_type)

    def inventory(self) -> Inventory:
        groups: dict[str, NodeGroup] = {}
        for index, written in enumerate(self._groups):
            place = f"{PLACE}[{index}]"
            if written.label in groups:
                self._fault(f"{place}.label", f"'{written.label}' is given twice", "Give each group a label of its own.")
            group = self._group(written, place)
            if group is not None:
                groups[written.label] = group
        found = [
            replace(node, hardware={**node.hardware, **{name: tuple(devices) for name, devices in more.items()}})
            for node, more in zip(self._nodes, self._hardware, strict=True)
        ]
        # Groups with faults may name nodes that are not there; their types can be checked all the same.
        inventory = Inventory(found, None if self._faults else groups)
        self._check_types(inventory, groups)
        if not self._faults:
            return inventory
        if len(self._faults) == 1:
            raise self._faults[0]
        raise ConfigError(PLACE, f"{len(self._faults)} faults", "\n  " + "\n  ".join(str(fault) for fault in self._faults))

    def _fault(self, place: str, problem: str, remedy: str = "") -> None:
        self._faults.append(ConfigError(place, problem, remedy))

    def _ranks(self, value: int | str, place: str) -> tuple[int, ...]:
        try:
            return parse_ranks(value, len(self._nodes), place=f"{place}.node_ranks")
        except ConfigError as fault:
            self._faults.append(fault)
            return ()

    def _group(self, written: NodeGroupConfig, place: str) -> NodeGroup | None:
        ranks = self._ranks(written.node_ranks, place)
        if not ranks:
            return None
        env_vars, interpreters = self._environments(written, ranks, place)
        kind = written.hardware_type
        if written.hardware is not None:
            kind = self._stand(written.hardware, ranks, f"{place}.hardware")
            if kind is None:
                return None
        return NodeGroup(
            label=written.label,
            nodes=ranks,
            hardware_type=None if kind is None or written.ignore_hardware else self._spelling(kind),
            ignore_hardware=written.ignore_hardware,
            env_vars=env_vars,
            interpreters=interpreters,
        )

    def _environments(
        self, written: NodeGroupConfig, ranks: tuple[int, ...], place: str
    ) -> tuple[dict[int, Mapping[str, str]], dict[int, str]]:
        env_vars: dict[int, Mapping[str, str]] = {}
        interpreters: dict[int, str] = {}
        for index, entry in enumerate(written.env_configs):
            here = f"{place}.env_configs[{index}]"
            # `all` is all of the group here, and not of the cluster.
            chosen = ranks if str(entry.node_ranks).strip() == "all" else self._ranks(entry.node_ranks, here)
            outside = [rank for rank in chosen if rank not in ranks]
            if outside:
                problem = f"'{entry.node_ranks}' names node {outside[0]}, but the group '{written.label}' has {format_ranks(ranks)}"
                self._fault(f"{here}.node_ranks", problem, "Name nodes of the group.")
            twice = [rank for rank in chosen if rank in env_vars]
            if twice:
                self._fault(f"{here}.node_ranks", f"node {twice[0]} has an entry already", "Name each node in one entry.")
            for rank in chosen:
                env_vars[rank] = entry.variables()
                if entry.python_interpreter_path is not None:
                    interpreters[rank] = entry.python_interpreter_path
        return env_vars, interpreters

    def _stand(self, hardware: HardwareConfig, ranks: tuple[int, ...], place: str) -> str | None:
        """Puts the configured hardware on its nodes; its type, None if there is no such type."""
        try:
            cls = HARDWARE.get(hardware.type, place=f"{place}.type")
        except ConfigError as fault:
            self._faults.append(fault)
            return None
        for index, section in enumerate(hardware.configs):
            here = f"{place}.configs[{index}]"
            try:
                built = read(cls, section, place=here)
            except ConfigError as fault:
                self._faults.append(fault)
                continue
            self._put(hardware.type, built, section, ranks, here)
        return hardware.type

    def _put(self, kind: str, built: Any, section: Mapping[str, Any], ranks: tuple[int, ...], place: str) -> None:
        rank = section.get("node_rank")
        if not isinstance(rank, int) or rank not in ranks:
            self._fault(f"{place}.node_rank", f"expected a node of the group ({format_ranks(ranks)}), found {rank!r}")
            return
        name = self._spelling(kind)
        known = self._pieces.setdefault((name, *identity(built)), place)
        if known != place:
            self._fault(place, f"this {name} is declared at {known.removeprefix(f'{PLACE}')} already", "Declare each piece once.")
            return
        self._hardware[rank].setdefault(name, []).append(Device(model=name, config=built))

    def _spelling(self, kind: str) -> str:
        """One spelling for each type: upper and lower case are the same name."""
        return self._spellings.setdefault(kind.casefold(), kind)

    def _check_types(self, inventory: Inventory, groups: Mapping[str, NodeGroup]) -> None:
        """Each group's type exists, and no two groups have the same hardware of a node."""
        holders: dict[tuple[int, str], str] = {}
        for index, written in enumerate(self._groups):
            group = groups.get(written.label)
            kind = inventory.type_of(group) if group is not None else None
            if group is None or kind is None:
                continue
            # Pieces with a fault are on no node, and their fault is told already.
            described = written.hardware is not None and written.hardware.configs
            if not described and not any(inventory.nodes[rank].count(kind) for rank in group.nodes):
                self._missing(inventory, group, kind, f"{PLACE}[{index}].hardware_type")
            self._check_holders(inventory, group, kind, holders, f"{PLACE}[{index}]")

    def _check_holders(
        self, inventory: Inventory, group: NodeGroup, kind: str, holders: dict[tuple[int, str], str], place: str
    ) -> None:
        for rank in group.nodes:
            node = inventory.nodes[rank]
            # `NV_GPU` and `Accelerator` are the same devices of a node.
            name = ACCELERATOR if kind == node.accelerator_type else kind
            held = holders.setdefault((rank, name), group.label)
            if held != group.label and node.count(kind):
                problem = f"node {rank} and its {_plural(name)} are in the group '{held}' already"
                self._fault(place, problem, "Part the nodes, or set ignore_hardware for one of the two groups.")
                return

    def _missing(self, inventory: Inventory, group: NodeGroup, kind: str, place: str) -> None:
        have = sorted({name for rank in group.nodes for name in inventory.nodes[rank].types})
        where = f"node{'' if len(group.nodes) == 1 else 's'} {format_ranks(group.nodes)} of the group '{group.label}'"
        self._fault(place, f"no hardware of type '{kind}' at {where}", did_you_mean(kind, have, label="They have"))


def _plural(name: str) -> str:
    return "accelerators" if name == ACCELERATOR else name
