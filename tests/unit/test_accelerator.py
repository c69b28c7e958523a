"""Weights and batches on their way to and from a GPU, by a double of CUDA: copied once a byte, and none too early.

A scenario checks one way. Then rules are broken, one at a time, and the scenario must find each.
"""

import copy
import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from filled import fill, module, value_of, words
from mapped import Mapped
from processes import until
from victims import fork, reap

import marlcore as mc
from marlcore.errors import NotEnoughData

torch = pytest.importorskip("torch")  # an extra of the core
from broken import break_rule  # noqa: E402
from cuda_double import CudaDouble, same  # noqa: E402

from marlcore import accelerator  # noqa: E402
from marlcore.replay.prefetch_work import Mover  # noqa: E402
from marlcore.weights.modules import ModuleWeights  # noqa: E402
from marlcore.weights.publisher import Publisher  # noqa: E402
from marlcore.weights.subscriber import Subscriber  # noqa: E402

BATCH, FRAME = 16, mc.Field((64, 64), "uint8")
large = partial(module, 128)  # 264 KB


@pytest.fixture
def store() -> Iterator[mc.ParameterStore]:
    with mc.ParameterStore.create(large(), extras={"version": ()}) as store:
        yield store


@pytest.fixture
def replay() -> Iterator[mc.ReplayBuffer]:
    with mc.ReplayBuffer.create(mc.TransitionSpec(FRAME, mc.Field((), "int64")), 400) as replay:
        with replay.writer() as writer:
            for t in range(300):
                writer.add(np.full(FRAME.shape, t % 256, np.uint8), t, t, t % 7 == 6)
        yield replay


class Once:
    """A sampler that has one batch."""

    stats, can_sample = None, staticmethod(lambda: True)

    def __init__(self, batch: mc.Batch) -> None:
        self.batches = [batch]

    def sample(self) -> mc.Batch:
        if not self.batches:
            raise NotEnoughData("no more")
        return self.batches.pop()


def publish(publisher: Any, model: Any, version: int) -> None:
    fill(model, version)
    assert publisher.publish(version=version) == version


def publishes(cuda: CudaDouble, store: mc.ParameterStore) -> None:
    """The row arrives by one copy, between reservation and commit, after the device has computed the weights."""
    model, seen = large(), Mapped(store).counters()
    with store.publisher(model) as publisher:
        for version in (1, 2, 3):

            def compute(version: int = version) -> None:
                assert seen.tolist() == [version - 1] * 2, "reserved while the device computes"
                fill(model, version)

            def halfway(version: int = version) -> None:
                assert seen.tolist() == [version - 1, version]

            cuda.current.work.append(compute)
            cuda.halfway, cuda.by_device, cuda.by_cpu = halfway, 0, 0
            assert publisher.publish(version=version) == version
            slot = store.slot_array((version - 1) % 2)
            arrived = [part.view(np.float32) for _, part in store.layout.parts(slot)]
            assert value_of(arrived) == version == store.layout.extra_views(slot)["version"]
            ends = store.layout.tensor_bytes, store.layout.nbytes
            assert (cuda.by_device, cuda.by_cpu) == (ends[0], ends[1] - ends[0])


def pulls(cuda: CudaDouble, store: mc.ParameterStore) -> None:
    """The row arrives by one copy, whole or not at all, though the publisher laps the first try."""
    model, local = large(), fill(large(), 99)
    with store.publisher(model) as publisher:
        subscriber = store.subscriber(local)
        publish(publisher, model, 1)

        def lap() -> None:
            assert value_of(words(local)) == 99, "a part has arrived"
            publish(publisher, model, 2)
            publish(publisher, model, 3)

        cuda.halfway = lap
        assert subscriber.pull()
        assert value_of(words(local)) == 3 and subscriber.extras == {"version": subscriber.version} == {"version": 3}
        assert not subscriber.pull()
        publish(publisher, model, 4)
        cuda.by_device = cuda.by_cpu = 0
        assert subscriber.pull_version(4) and value_of(words(local)) == 4
        assert (cuda.by_device, cuda.by_cpu) == (store.layout.tensor_bytes, 0)
        assert not subscriber.pull_version(2) and not subscriber.pull_version(5)
        cuda.halfway = lambda: [publish(publisher, model, version) for version in (5, 6)]
        assert not subscriber.pull_version(4) and value_of(words(local)) == subscriber.version == 4


def moves_batches(cuda: CudaDouble, replay: mc.ReplayBuffer) -> None:
    """Batches arrive by one copy of the memory into which they were drawn, in two memories by turns."""
    make = partial(replay.sampler, BATCH, stack=2, seed=3)
    plain, sampler = make(), make()
    with mc.Prefetch(sampler, depth=4, device="cuda") as batches:
        until(lambda: batches.stats.drawn == 4 * BATCH)  # before the consumer's stream waits for any
        for _ in range(12):
            batch, expected = batches.sample(), plain.sample()
            same(batch, expected)
            assert isinstance(batch.obs, torch.Tensor) and batch.obs.is_contiguous()
        until(lambda: batches.stats.drawn == 16 * BATCH)
    memories = sampler._rows._plan._sized.pool
    assert len(memories) == 2 and all(memory.is_free() for memory in memories)
    assert cuda.registered.keys() == {memory._owner.ctypes.data for memory in memories}
    assert cuda.pinned == 0 and cuda.by_device == 16 * len(memories[0].root)


def waits_for_its_batch(cuda: CudaDouble, replay: mc.ReplayBuffer) -> None:
    """The consumer's stream waits for the copies; nothing else does while no further batch is drawn."""
    batch, plain = replay.sampler(BATCH, seed=3).sample(), replay.sampler(BATCH, seed=3).sample()
    with mc.Prefetch(Once(batch), device="cuda") as batches:
        same(batches.sample(), plain)


def registers(cuda: CudaDouble, store: mc.ParameterStore) -> None:
    """Registration is made once, by a publisher and subscribers together, and ends before the memory is unmapped."""
    model, local = large(), large()
    again = mc.ParameterStore.attach(store.handle)
    with again, again.publisher(model) as publisher:
        subscribers = [again.subscriber(local) for _ in range(2)]
        publish(publisher, model, 1)
        assert all(subscriber.pull() for subscriber in subscribers)
        assert list(cuda.registered.values()) == [again.nbytes]
    # A child that lets go of everything leaves the registration, which is its parent's, alone.
    held = [publisher, again, *subscribers]
    del publisher, subscribers, again

    def let_go() -> int:
        held.clear()
        gc.collect()
        return len(cuda.registered) + 10

    assert reap(fork(let_go)) == 11
    held.clear()
    gc.collect()
    assert not cuda.registered and not cuda.wrong


def falls_back(cuda: CudaDouble, store: mc.ParameterStore) -> None:
    """Without registration, everything arrives, and torch's next kernel knows nothing of the refusal."""
    cuda.refuses = True
    publishes(cuda, store)
    assert not cuda.refusal and not cuda.registered


SCENARIOS = [publishes, pulls, moves_batches, waits_for_its_batch, registers, falls_back]
Scenario = Callable[[CudaDouble, Any], None]


def run(scenario: Scenario, cuda: CudaDouble, store: mc.ParameterStore, replay: mc.ReplayBuffer) -> None:
    of_batches = scenario in (moves_batches, waits_for_its_batch)
    scenario(cuda, replay if of_batches else store)
    gc.collect()
    assert not cuda.wrong and not (of_batches and cuda.registered)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_byte_is_copied_once(
    scenario: Scenario, cuda_double: CudaDouble, store: mc.ParameterStore, replay: mc.ReplayBuffer
) -> None:
    run(scenario, cuda_double, store, replay)


BROKEN: list[tuple[Scenario, Any, str, str, str]] = [
    (publishes, Publisher, "_appender", "put(store.slot_array(ticket % store.slots))\n        finish(ticket)",
     "put((finish(ticket), store.slot_array(ticket % store.slots))[1])"),  # a commit before the copy
    (publishes, accelerator.DeviceRow, "put", "copy_(self._row)", "copy_(self._row, non_blocking=True)"),
    (publishes, ModuleWeights, "staged", "self.device_row.settle()", "pass"),
    (pulls, Subscriber, "_get", "return is_whole()", "return True"),
    (pulls, Subscriber, "_get", "device_row.get(slot)", "device_row.get((whole := is_whole(), slot)[1]); return whole"),
    (pulls, Subscriber, "pull_version", "ticket < self._lanes.committed(0) and ", ""),
    (pulls, accelerator.DeviceRow, "get", "(self._host_tensor(slot))", "(self._host_tensor(slot), non_blocking=True)"),
    (pulls, accelerator.DeviceRow, "get", "self._pulled.copy_", "self._row.copy_"),
    (moves_batches, Mover, "move", "= event, host", "= event, None"),  # memory drawn into before its event
    (moves_batches, Mover, "_settle", "self._copying[0].synchronize()", "pass"),
    (moves_batches, Mover, "_parts", "self._to_device(host)", "self._to_device(self._pinned(host))"),
    (waits_for_its_batch, Mover, "arrive", "stream.wait_event(event)", "pass"),
    (registers, accelerator, "_forget", "torch.cuda.cudart().cudaHostUnregister(address)", "pass"),
    (registers, accelerator, "_forget", "registered_by == os.getpid()", "registered_by"),
    (registers, accelerator, "register", "address in _known or", ""),
    (falls_back, accelerator, "register", "torch.ones(1, device=device)", "pass"),
]  # fmt: skip


@pytest.mark.parametrize("scenario, owner, name, rule, broken", BROKEN)
def test_each_broken_rule_is_found(
    scenario: Scenario, owner: Any, name: str, rule: str, broken: str,
    cuda_double: CudaDouble, store: mc.ParameterStore, replay: mc.ReplayBuffer, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    break_rule(monkeypatch, owner, name, rule, broken)
    with pytest.raises(AssertionError):
        run(scenario, cuda_double, store, replay)


def test_a_publisher_killed_in_its_copy_leaves_older_slots(cuda_double: CudaDouble, store: mc.ParameterStore) -> None:
    def die() -> None:
        with store.publisher(model) as publisher:
            cuda_double.halfway = lambda: os.kill(os.getpid(), signal.SIGKILL)
            publisher.publish(version=2)

    model, local = fill(large(), 1), large()
    with store.publisher(model) as publisher:
        publisher.publish(version=1)
    assert reap(fork(die)) == -signal.SIGKILL
    subscriber = store.subscriber(local)
    assert subscriber.pull() and subscriber.version == value_of(words(local)) == 1
    with store.publisher(fill(model, 2)) as successor:
        assert successor.publish(version=2) == 2
    assert subscriber.pull() and subscriber.version == value_of(words(local)) == 2


def test_after_a_failed_copy_nothing_was_published(cuda_double: CudaDouble, store: mc.ParameterStore) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    model, local = fill(large(), 1), large()
    with store.publisher(model) as publisher:
        cuda_double.halfway = fail
        with pytest.raises(RuntimeError, match="illegal memory"):
            publisher.publish(version=1)
        assert store.version == publisher.version == 0
        publish(publisher, model, 1)
        assert store.subscriber(local).pull() and value_of(words(local)) == 1


def test_batches_outside_a_samplers_memory_are_pinned_first(cuda_double: CudaDouble, replay: mc.ReplayBuffer) -> None:
    batch = replay.sampler(BATCH, seed=3).sample()
    with mc.Prefetch(Once(copy.deepcopy(batch)), device="cuda") as batches:
        same(batches.sample(), batch)
    assert cuda_double.pinned and not cuda_double.wrong


def test_the_double_tells_of_memory_that_was_unmapped_before(cuda_double: CudaDouble) -> None:
    """The control: the tests above would find it."""
    memory = np.zeros(1 << 26, np.uint8)  # freed at once
    address = memory.ctypes.data
    assert cuda_double.cudaHostRegister(address, memory.nbytes, 1) == 0
    del memory
    cuda_double.cudaHostUnregister(address)
    assert cuda_double.wrong == ["unregisters memory that is gone"]
