"""Steps of writing and training in a time of their own: what policies are worth, without a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlinf.scheduler.lending import Demand, MovePolicy
from rlinf.scheduler.planner.workload import Component

TICK_S = 0.02
REREAD = 0.02
"""Reading what a sequence that has moved had written, as a share of writing it."""


@dataclass(kw_only=True)
class Simulated:
    """One step: items are written, `slots` at a time on a device, then trained on, one at a time."""

    lengths: Sequence[float]
    writing: Component
    training: Component
    slots: int
    home: Mapping[str, Sequence[int]]
    policy: MovePolicy
    now: float = 0.0
    moves: int = 0
    where: dict[int, str] = field(default_factory=dict[int, str])
    since: dict[int, float] = field(default_factory=dict[int, float])
    busy_until: dict[int, float] = field(default_factory=dict[int, float])
    on: dict[int, int] = field(default_factory=dict[int, int])
    """Item → device, while it is written."""
    trained_on: dict[int, int] = field(default_factory=dict[int, int])
    """Device → item."""

    def seconds(self) -> float:
        """Until all is trained on."""
        self.done = [0.0] * len(self.lengths)
        self.unwritten, self.ready, self.ended = list(range(len(self.lengths))), list[int](), 0
        self.where = {device: name for name, devices in self.home.items() for device in devices}
        self.since, self.busy_until = dict.fromkeys(self.where, -9.0), dict.fromkeys(self.where, 0.0)
        while self.ended < len(self.lengths):
            self._dispatch()
            self._move()
            self._tick()
            self.now += TICK_S
            assert self.now < 1e3
        return self.now

    def _free(self, name: str) -> list[int]:
        return [device for device, held in self.where.items() if held == name and self.busy_until[device] <= self.now]

    def _load(self, device: int) -> int:
        return sum(held == device for held in self.on.values())

    def _dispatch(self) -> None:
        self.unwritten.sort(key=lambda item: (not self.done[item], item))
        while self.unwritten:
            device = min(self._writers(), key=lambda device: (self._load(device), device), default=None)
            if device is None or self._load(device) >= self.slots:
                break
            item = self.unwritten.pop(0)
            self.on[item] = device
            self.busy_until[device] += REREAD * self.done[item]
        self.ready.sort(key=lambda item: -self.lengths[item])
        for device in self._free("actor"):
            if device not in self.trained_on and self.ready:
                item = self.ready.pop(0)
                self.trained_on[device] = item
                self.busy_until[device] = self.now + self.training.costs[1].seconds(1) * self.lengths[item]

    def _writers(self) -> list[int]:
        return [device for device, name in self.where.items() if name == "rollout"]

    def _tick(self) -> None:
        for device in self._free("rollout"):
            own = [item for item, held in self.on.items() if held == device]
            for item in own:
                self.done[item] += TICK_S / self.writing.costs[1].seconds(len(own))
                if self.done[item] >= self.lengths[item]:
                    del self.on[item]
                    self.ready.append(item)
        for device in list(self.trained_on):
            if self.busy_until[device] <= self.now + TICK_S:
                del self.trained_on[device]
                self.ended += 1

    def _move(self) -> None:
        move = self.policy.next_move([self._demand("rollout"), self._demand("actor")])
        if move is None:
            return
        self.moves += 1
        back = [item for item, held in self.on.items() if held == move.device]
        for item in back:
            del self.on[item]
        self.unwritten += back
        assert move.device not in self.trained_on
        self.where[move.device], self.since[move.device] = move.taker, self.now
        self.busy_until[move.device] = self.now + self.writing.offload_s + self.training.load_s

    def _demand(self, name: str) -> Demand:
        cost = self.writing if name == "rollout" else self.training
        own = {device: 0 for device, held in self.where.items() if held == name}
        for device in own:
            own[device] = self._load(device) if name == "rollout" else int(device in self.trained_on)
        items = [*self.unwritten, *self.on] if name == "rollout" else [*self.ready, *self.trained_on.values()]
        work = [1.0 - self.done[i] if name == "rollout" else self.lengths[i] for i in items]
        stay = cost.load_s + cost.offload_s
        return Demand(
            name=name,
            cost=cost,
            slots=self.slots if name == "rollout" else 1,
            devices=own,
            waiting=len(self.unwritten if name == "rollout" else self.ready),
            work=sum(work),
            progress=[self.done[item] for item in self.on] if name == "rollout" else (),
            coming=0 if name == "rollout" else len(self.unwritten) + len(self.on),
            fixed=frozenset(device for device in own if self.now - self.since[device] < stay),
        )
