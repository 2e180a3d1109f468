"""Device locks: who gets them, in which order, and who gives them back."""

import asyncio
import os
import random
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from rlinf.core.errors import ChannelClosed, DeadlineExceeded, RLinfError
from rlinf.scheduler.transport.waits import ThreadMonitor, Wait, calling
from rlinf.scheduler.workers.device_lock import Claim, DeviceLock, Locks

LONG_S = 60.0


def locks() -> Locks:
    return Locks(lambda: ThreadMonitor(LONG_S))


def wait(owner: str, timeout: float | None = None) -> Wait:
    return Wait(owner, "device", "the lock", timeout)


class Claimants:
    """Threads that wait for locks, and the order in which they got them."""

    def __init__(self, service: Locks) -> None:
        self.service = service
        self.order: list[str] = []
        self.threads: list[threading.Thread] = []

    def want(self, owner: str, devices: Sequence[int], method: str = "") -> Claim:
        claim = Claim(owner, tuple(devices), method)

        def run() -> None:
            try:
                self.service.acquire(claim, wait(owner))
            except (ChannelClosed, DeadlineExceeded):
                self.order.append(f"not {owner}")
            else:
                self.order.append(owner)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        until(lambda: claim in self.service._tickets)
        return claim

    def expect(self, *order: str) -> None:
        until(lambda: len(self.order) == len(order))
        assert self.order == list(order)


def test_first_come_first_served_for_each_device() -> None:
    claimants = Claimants(locks())
    a = claimants.want("a", [0])
    claimants.expect("a")
    b = claimants.want("b", [0, 1])
    c = claimants.want("c", [1])
    claimants.want("d", [2])
    claimants.expect("a", "d")  # c does not overtake b, which waits for both; d has nobody before it
    claimants.service.release(a)
    claimants.expect("a", "d", "b")
    claimants.service.release(c)
    claimants.expect("a", "d", "b", "not c")
    claimants.want("e", [0, 1, 2])
    claimants.service.release(b)
    claimants.service.forget("d", os.getpid() + 1)
    claimants.expect("a", "d", "b", "not c")
    claimants.service.forget("d", os.getpid())
    claimants.expect("a", "d", "b", "not c", "e")


def test_the_deadline_says_who_holds_and_who_waits() -> None:
    claimants = Claimants(locks())
    claimants.want("actor[0]", [0, 1], "train")
    claimants.expect("actor[0]")
    claimants.want("env[0]", [1, 2], "interact")
    with pytest.raises(DeadlineExceeded) as caught:
        claimants.service.acquire(Claim("rollout[1]", (0, 1, 2, 3)), wait("rollout[1]", 0.1))
    assert re.sub(r"for \d+ s", "for N s", str(caught.value)) == (
        "device: rollout[1] waited 0.1 s for the lock in vain; "
        "device 0 is held by actor[0] (for N s, in train()); "
        "device 1 is held by actor[0] (for N s, in train()), in line: env[0] (for N s, in interact()); "
        "device 2 is free, in line: env[0] (for N s, in interact()); device 3 is free. "
        "Pass a longer timeout if this is normal."
    )
    assert claimants.service.ahead("env[0]")[0] == {"actor[0]"}
    assert claimants.service.ahead("actor[0]") == (set(), "")


def test_a_claim_that_expired_stands_in_nobodys_way() -> None:
    claimants = Claimants(locks())
    a = claimants.want("a", [0])
    with pytest.raises(DeadlineExceeded):
        claimants.service.acquire(Claim("b", (0, 1)), wait("b", 0.05))
    claimants.want("c", [1])
    claimants.expect("a", "c")
    claimants.service.release(a)
    claimants.service.close("the end")
    with pytest.raises(ChannelClosed, match="the end"):
        claimants.service.acquire(Claim("d", (7,)), wait("d"))
    assert [ticket.claim.owner for ticket in claimants.service._tickets.values()] == ["c"]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.frozensets(st.integers(0, 3), min_size=1)), max_size=12), st.randoms())
def test_grants_are_those_of_a_model(steps: list[tuple[int, frozenset[int]]], choose: random.Random) -> None:
    """Against a list of claims in order, of which each is granted that overlaps no earlier one."""
    claimants = Claimants(locks())
    model: list[Claim] = []

    def granted() -> set[Claim]:
        return {claim for i, claim in enumerate(model) if not any(set(claim.devices) & set(before.devices) for before in model[:i])}

    def held() -> set[Claim]:
        return {claim for claim, ticket in list(claimants.service._tickets.items()) if ticket.held}

    for kind, devices in steps:
        if kind == 0 and model:
            gone = model.pop(choose.randrange(len(model)))
            claimants.service.release(gone)
        else:
            model.append(claimants.want(f"w{len(model)}", sorted(devices)))
        until(lambda: held() == granted())
    while model:
        first = next(iter(granted()))
        claimants.service.release(first)
        model.remove(first)
        until(lambda: held() == granted())
    assert not claimants.service._lines
    for thread in claimants.threads:
        thread.join(5.0)


def test_stress_no_device_is_held_twice_and_nobody_starves() -> None:
    """Ten threads of five workers over four devices, overlapping at random; some leave at a deadline, some die."""
    service = locks()
    inside: list[str | None] = [None] * 4
    entries: dict[int, int] = dict.fromkeys(range(10), 0)
    faults: list[str] = []

    def work(index: int) -> None:
        choose = random.Random(index)
        for _ in range(60):
            devices = tuple(sorted(choose.sample(range(4), choose.randint(1, 4))))
            claim = Claim(f"w[{index % 5}]", devices, pid=index)
            try:
                service.acquire(claim, wait("w", 0.001 if choose.random() < 0.2 else LONG_S))
            except DeadlineExceeded:
                continue
            for device in devices:
                if inside[device] is not None:
                    faults.append(f"{device} has {inside[device]} and {claim}")
                inside[device] = str(claim)
            time.sleep(choose.random() * 0.002)
            for device in devices:
                inside[device] = None
            entries[index] += 1
            if choose.random() < 0.1:
                service.forget(claim.owner, claim.pid)
            else:
                service.release(claim)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []
    assert min(entries.values()) >= 30
    assert not service._lines
    assert not service._tickets


def test_who_wants_all_devices_is_not_overtaken_for_ever() -> None:
    """Two workers pass one device each back and forth without a gap; the third, who wants both, comes in turn."""
    service = locks()
    stop = threading.Event()
    turns = [0, 0]

    def hog(device: int) -> None:
        previous: Claim | None = None
        while not stop.is_set():
            claim = Claim(f"hog[{device}]", (device,))
            thread = threading.Thread(target=service.acquire, args=(claim, wait("hog")))
            thread.start()  # in line before the previous one is released
            until(lambda claim=claim: claim in service._tickets)
            if previous is not None:
                service.release(previous)
            thread.join()
            previous = claim
            turns[device] += 1
        assert previous is not None
        service.release(previous)

    threads = [threading.Thread(target=hog, args=(device,), daemon=True) for device in (0, 1)]
    for thread in threads:
        thread.start()
    until(lambda: min(turns) > 5)
    for _ in range(3):
        claim = Claim("both", (0, 1))
        service.acquire(claim, wait("both", LONG_S))
        assert [line[0].claim.owner for line in service._lines.values()] == ["both", "both"]
        service.release(claim)
    stop.set()
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


def test_a_lock_is_reentrant_in_its_thread_and_other_threads_wait() -> None:
    service = locks()
    lock = DeviceLock(service, "w[0]", [3, 1, 3])
    order: list[str] = []

    def other() -> None:
        with lock:
            order.append("other")

    with calling("w[0]", "step"):
        lock.acquire()
    thread = threading.Thread(target=other)
    with lock:
        thread.start()
        until(lambda: len(service._tickets) == 2)
        order.append("inside")
    time.sleep(0.05)
    order.append("still inside")
    (held,) = [claim for claim, ticket in service._tickets.items() if ticket.held]
    assert (held.devices, held.method) == ((1, 3), "step")
    with pytest.raises(DeadlineExceeded, match=r"device 1,3: x waited 0.05 s .* held by w\[0\] \(for \d+ s, in step\(\)\)"):
        DeviceLock(service, "x", [1, 3]).acquire(timeout=0.05)
    lock.release()
    thread.join(60.0)
    assert order == ["inside", "still inside", "other"]
    with pytest.raises(RLinfError, match=r"device 1,3: w\[0\] releases a lock that this thread does not hold"):
        lock.release()
    assert not service._tickets


def test_a_worker_without_devices_has_nothing_to_wait_for() -> None:
    service = locks()
    other, lock = DeviceLock(service, "w[1]", [0, 1]), DeviceLock(service, "w[0]", [])
    with other, lock, lock:
        lock.acquire(0.0)
        assert len(service._tickets) == 1, "it claims nothing"
    lock.release()
    assert not service._tickets


def test_tasks_of_one_event_loop_take_turns() -> None:
    service = locks()
    lock = DeviceLock(service, "w[0]", [0])
    order: list[str] = []

    async def step(name: str) -> None:
        async with lock, lock:
            order.append(f"{name} in")
            await asyncio.sleep(0.01)
            order.append(f"{name} out")

    async def main() -> None:
        await asyncio.gather(step("a"), step("b"))
        async with lock:
            late = asyncio.create_task(step("c"))
            await asyncio.to_thread(until, lambda: len(service._tickets) == 2)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            await asyncio.to_thread(until, lambda: len(service._tickets) == 1)

            async def blocks() -> None:
                with lock:
                    pass

            with pytest.raises(RLinfError, match="Use `async with`"):
                await asyncio.create_task(blocks())

    asyncio.run(main())
    assert order in (["a in", "a out", "b in", "b out"], ["b in", "b out", "a in", "a out"])
    assert not service._tickets


def test_more_tasks_may_wait_than_the_event_loop_has_threads() -> None:
    lock = DeviceLock(Locks(lambda: ThreadMonitor(LONG_S)), "w[0]", [0])
    entered: list[int] = []

    async def step(number: int) -> None:
        async with lock:
            entered.append(number)
            await asyncio.sleep(0.0)

    async def main() -> None:
        # One thread stands for the few that asyncio's own has.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.gather(*(step(number) for number in range(8)))

    asyncio.run(main())
    assert sorted(entered) == list(range(8))
