"""Every use of everything that processes share, each as one call: what enemies and interrupts are tried on."""

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from model import column

import marlcore as mc
from marlcore.observations import in_form
from marlcore.processes import READY, STEPS, Control, Metric, Telemetry

SPEC = mc.TransitionSpec(
    {"x": mc.Field((3,)), "frame": mc.Field((20, 20), "uint8")},
    mc.Field((), "int16"),
    {"priority": mc.Field(), "h": mc.Field((5,), every=4)},
)
PAIRS = mc.TransitionSpec(mc.Field((70, 3)), mc.Field(), {"done": mc.Field((), "bool")}, next_obs=True)
WORKERS = ["actor-0", "learner"]

Use = Callable[[], object]


def row_of(spec: mc.TransitionSpec) -> dict[str, Any]:
    def ones(fields: Any) -> dict[str, Any]:
        return {name: np.ones(field.shape, field.dtype) for name, field in fields.items()}

    obs = in_form(ones(spec.obs_fields), spec.obs)
    row = {"obs": obs, "reward": 1.0, **ones({"action": spec.action, **spec.extras})}
    return row | ({"next_obs": obs} if spec.next_obs else {})


def write_rows(shared: Any, *counts: int) -> Any:
    """Writes each lane its count of rows, in short episodes."""
    for lane, count in enumerate(counts):
        with shared.writer(lane, timeout=0.0) as writer:
            for i in range(count):
                writer.add(**row_of(shared.spec), terminated=i % 11 == 10)
    return shared


def check_batch(batch: Any) -> object:
    """Checks what holds for any batch, whatever its rows contain."""
    assert (batch.index >= 0).all()
    assert batch.reward.dtype == batch.discount.dtype == np.float32
    assert batch.valid.any()
    return batch


class Case:
    """Something shared, which `create` makes, with other attributes where they are given. `uses` has every use of it,
    each one call; `attached` uses what a changed header describes.
    """

    def __init__(self, folder: Path, **others: Any) -> None:
        vars(self).update(others, folder=folder)
        self.shared = self.create()

    def open(self) -> None:
        """Makes what is used for many rounds."""

    def attach(self) -> None:
        type(self.shared).attach(self.shared.handle).close()

    def replace(self, name: str, make: Callable[[], Any]) -> None:
        getattr(self, name).close()
        setattr(self, name, make())

    def look(self) -> None:
        """Checks what an interrupted use left, and mends what it may have ended."""


class Replay(Case):
    spec = SPEC
    limiter: mc.RateLimiter | None = None
    priorities = mc.Prioritized(alpha=0.7, initial="priority")
    options: tuple[dict[str, Any], ...] = (
        {},
        {"stack": 4, "n_step": 3, "pad": "zero"},
        {"sequence": mc.Sequence(8, 4), "stack": 2},
        {"prioritized": priorities, "stack": 2, "n_step": 2},
        {"sequence": mc.Sequence(4), "prioritized": priorities},
    )

    def create(self) -> mc.ReplayBuffer:
        path = self.folder / "segment"
        return write_rows(mc.ReplayBuffer.create(self.spec, 96, 2, limiter=self.limiter, path=path), 40, 70)

    def open(self) -> None:
        self.samplers = [self.shared.sampler(8, seed=i, min_size=1, **kind) for i, kind in enumerate(self.options)]
        self.states = [sampler.state_dict() for sampler in self.samplers]
        self.index = np.arange(8)
        self.writers = [self.shared.writer(lane, timeout=0.0) for lane in range(2)]

    def uses(self) -> dict[str, Use]:
        loads = {f"load {name}": partial(self.load, name) for name in ("save", "segment")}
        uses: dict[str, Use] = {
            "len": self.count, "save": self.save, **loads, "attach": self.attach,
            "create": lambda: mc.ReplayBuffer.create(self.spec, 96, 2).close(), "create a file": self.create_file,
            "sampler": lambda: self.shared.sampler(8, min_size=1),
            "write a vector": self.write_vector,
            "read": lambda: self.shared.read(self.index, missing="skip"), "clear": self.clear,
            "batches": lambda: [check_batch(batch) for batch in self.shared.batches(7)],
            **({} if self.spec.next_obs else {"episodes": lambda: [*map(check_batch, self.shared.episodes())]}),
        }  # fmt: skip
        for i, sampler in enumerate(self.samplers):
            uses |= {
                f"sample {i}": partial(self.sample, sampler), f"can_sample {i}": sampler.can_sample,
                f"state_dict {i}": partial(self.state, i),
                f"load_state_dict {i}": partial(lambda i: self.samplers[i].load_state_dict(self.states[i]), i),
            }  # fmt: skip
            if sampler.prioritized:
                uses[f"update {i}"] = partial(self.update, sampler)
        for lane, writer in enumerate(self.writers):
            uses[f"add {lane}"] = partial(writer.add, **row_of(self.spec), truncated=False)
            uses[f"replace writer {lane}"] = partial(self.replace_writer, lane)
        return uses

    def count(self) -> None:
        assert 0 <= len(self.shared) <= self.shared.capacity

    def sample(self, sampler: Any) -> object:
        batch = sampler.sample()
        self.index = batch.index.copy()
        return check_batch(batch)

    def update(self, sampler: Any) -> None:
        sampler.update_priorities(self.index, np.ones(len(self.index)))

    def clear(self) -> None:
        self.shared.clear()
        for writer in self.writers:
            for i in range(30):
                writer.add(**row_of(self.spec), terminated=i % 11 == 10)

    def state(self, i: int) -> None:
        self.states[i] = self.samplers[i].state_dict()

    def replace_writer(self, lane: int) -> None:
        self.writers[lane].close()
        self.writers[lane] = self.shared.writer(lane, timeout=0.0)

    def write_vector(self) -> None:
        for writer in self.writers:
            writer.close()
        with self.shared.vector_writer(timeout=0.0) as vector:
            vector.add(**{name: column([value, value]) for name, value in row_of(self.spec).items()})
        self.writers = [self.shared.writer(lane, timeout=0.0) for lane in range(2)]

    def create_file(self) -> None:
        (self.folder / "file").unlink(missing_ok=True)
        mc.ReplayBuffer.create(self.spec, 96, 2, path=self.folder / "file").close()

    def save(self) -> None:
        self.shared.save(self.folder / "save", self.samplers[-1])

    def load(self, name: str) -> None:
        """The segment itself has no checksum, so that what is loaded may hold anything."""
        with mc.ReplayBuffer.load(self.folder / name) as replay:
            self.attached(replay)
            replay.sampler_state  # noqa: B018 (reading it checks it)

    def attached(self, shared: mc.ReplayBuffer) -> None:
        len(shared)
        with shared.writer(timeout=0.0) as writer:
            writer.add(**row_of(shared.spec))
        check_batch(shared.sampler(4, min_size=1).sample())


class Queue(Case):
    """A queue's reader, its successors, and writers that it keeps back."""

    when_full = "wait"

    def create(self) -> mc.TrajectoryQueue:
        path = self.folder / "segment"
        return write_rows(mc.TrajectoryQueue.create(SPEC, 160, 2, when_full=self.when_full, path=path), 78, 78)

    def open(self) -> None:
        self.writers = [self.shared.writer(lane, timeout=0.0) for lane in range(2)]
        self.reader = self.shared.reader(4)

    def uses(self) -> dict[str, Use]:
        uses: dict[str, Use] = {
            "len": lambda: len(self.shared), "dropped": lambda: self.shared.dropped,
            "skipped": lambda: self.shared.skipped, "read": lambda: check_batch(self.reader.read()),
            "wait": lambda: check_batch(self.reader.read(timeout=0.0)),
        }  # fmt: skip
        for i, options in enumerate(({}, {"stack": 3, "n_step": 2}, {"length": 4}, {"length": 8, "stack": 2})):
            uses[f"replace reader {i}"] = partial(self.replace, "reader", partial(self.shared.reader, 4, **options))
        for lane, writer in enumerate(self.writers):
            uses[f"add {lane}"] = partial(writer.add, **row_of(SPEC), truncated=False)
        return uses

    def attached(self, shared: mc.TrajectoryQueue) -> None:
        assert len(shared) + shared.dropped.sum() + shared.skipped.sum() >= 0
        with shared.writer(timeout=0.0) as writer, shared.reader(2) as reader:
            writer.add(**row_of(shared.spec))
            check_batch(reader.read())


class Store(Case):
    def model(self) -> Any:
        import torch

        return torch.nn.Linear(10, 4)

    def create(self) -> mc.ParameterStore:
        path = self.folder / "segment"
        store = mc.ParameterStore.create(self.model(), "double_buffer", {"temperature": ()}, path=path)
        with store.publisher(self.model()) as publisher:
            publisher.publish(temperature=1.0)
        return store

    def open(self) -> None:
        self.subscriber = self.shared.subscriber(self.model())
        self.publisher = self.shared.publisher(self.model())

    def uses(self) -> dict[str, Use]:
        return {
            "version": lambda: self.shared.version, "pull": lambda: self.subscriber.pull(timeout=0.001),
            "in place": self.in_place, "publish": lambda: self.publisher.publish(temperature=2.0),
            "wait": lambda: self.subscriber.wait(1, timeout=0.0),
            "replace publisher": lambda: self.replace("publisher", lambda: self.shared.publisher(self.model())),
        }  # fmt: skip

    def in_place(self) -> None:
        with self.subscriber.in_place() as view:
            assert [tuple(tensor.shape) for tensor in view.tensors.values()] == [(4, 10), (4,)]
            view.valid()

    def attached(self, shared: mc.ParameterStore) -> None:
        shared.slot_tensor(0).sum()
        subscriber = shared.subscriber(self.model())
        subscriber.pull()
        with subscriber.in_place() as view:
            view.valid()


class Block(Case):
    def create(self) -> Control:
        return Control.create(WORKERS)

    def uses(self) -> dict[str, Use]:
        return {"read": partial(self.attached, self.shared)}

    def attached(self, shared: Control) -> None:
        assert shared.stopping in (False, True)
        assert isinstance(shared.steps, int)
        for counters in [*shared.workers.values(), *shared.notes.values()]:
            counters.store(READY, counters.load(STEPS))


class Metrics(Case):
    metric = Metric(1.0, 2, "agent_0", "loss", 3.0)

    def create(self) -> Telemetry:
        telemetry = Telemetry.create(WORKERS)
        for worker in WORKERS:
            reporter = telemetry.reporter(worker)
            for _ in range(100):
                reporter.report(self.metric)
            reporter.close()
        return telemetry

    def open(self) -> None:
        self.reporter = self.shared.reporter(WORKERS[0])
        self.late = Telemetry.attach(self.shared.handle)

    def uses(self) -> dict[str, Use]:
        return {
            "report": lambda: self.reporter.report(self.metric), "tail": self.shared.tail,
            "tail for the first time": lambda: Telemetry.attach(self.shared.handle).tail(),
            "replace reporter": lambda: self.replace("reporter", lambda: self.shared.reporter(WORKERS[0])),
        }  # fmt: skip

    def attached(self, shared: Telemetry) -> None:
        assert all(isinstance(metric.name, str) for metric in shared.tail())


class Numbers:
    """A sampler whose batches are 1, 2, 3, and which is short of data at every seventh attempt."""

    stats = None

    def __init__(self) -> None:
        self.number, self.attempts, self.inside = 0, 0, threading.Lock()

    def can_sample(self) -> bool:
        return True

    def sample(self, timeout: float | None = None) -> int:
        with self.inside:
            self.attempts += 1
            if self.attempts % 7 == 0:
                raise mc.NotEnoughData("nothing is there")
            time.sleep(20e-6)
            self.number += 1
            return self.number

    def update_priorities(self, index: Any, priority: Any) -> None:
        assert not self.inside.locked(), "the sampler draws"


class Prefetching(Case):
    """A thread's batches: none comes twice, and none is lost but that of an interrupted `sample`."""

    def create(self) -> mc.Prefetch[Any]:
        self.last, self.lost, self.closed = 0, 0, False
        return mc.Prefetch(Numbers(), depth=2)

    def uses(self) -> dict[str, Use]:
        uses: dict[str, Use] = {
            "sample": self.sample, "update": lambda: self.shared.update_priorities([0], [1.0]), "ask": self.ask,
            "close": self.close,
        }  # fmt: skip
        return {**uses, "all": lambda: [use() for use in (self.sample, *uses.values(), self.make)]}

    def sample(self) -> None:
        self.lost += 1  # at most, until it is here
        number = self.shared.sample(timeout=600.0)
        self.lost -= 1
        if not 0 < number - self.last <= 1 + self.lost:
            raise AssertionError(f"batch {number} came behind {self.last} with {self.lost} interrupted samples")
        self.last, self.lost = number, 0

    def ask(self) -> None:
        assert self.shared.can_sample()

    def close(self) -> None:
        self.closed = True
        self.shared.close()

    def make(self) -> None:
        mc.Prefetch(Numbers(), depth=1).close()

    def look(self) -> None:
        """A thread that outlives its Prefetch, perhaps one whose making was interrupted, is waited for in vain."""
        if self.closed:
            self.shared.close()
            self.shared = self.create()
        self.sample()
        self.uses()["update"]()
        while sum(thread.name == "marlcore-prefetch" for thread in threading.enumerate()) > 1:
            gc.collect()


CASES = {
    "replay": Replay,
    "pairs": partial(Replay, spec=PAIRS, options=({}, {"prioritized": mc.Prioritized()})),
    "limited": partial(Replay, limiter=mc.RateLimiter(4.0, 10, 1000.0)),
    "queue": Queue, "dropping_queue": partial(Queue, when_full="drop_newest"),
    "store": Store, "control": Block, "telemetry": Metrics,
}  # fmt: skip
