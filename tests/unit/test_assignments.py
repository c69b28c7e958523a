"""An assignment to a public object takes effect or is refused."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from refused import Refused, each_bad, refusals

import marlcore as mc

SPEC = mc.TransitionSpec(mc.Field(), mc.Field())
ARRAYS = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
FREE = {"TreasureHunt"}  # an environment, on which wrappers may keep values


@pytest.fixture
def objects() -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        hold = stack.enter_context
        replay, queue = hold(mc.ReplayBuffer.create(SPEC, 20, lanes=3)), hold(mc.TrajectoryQueue.create(SPEC, 20))
        store, writer = hold(mc.ParameterStore.create(ARRAYS)), hold(replay.writer())
        writer.add_batch(np.zeros(4), np.zeros(4), np.zeros(4))
        sampler = replay.sampler(2, prioritized=mc.Prioritized())
        yield {
            "replay": replay, "queue": queue, "store": store, "writer": writer, "sampler": sampler,
            "vector writer": hold(replay.vector_writer([1, 2])), "reader": hold(queue.reader(2)),
            "mixture": mc.Mixture([replay], [1.0], 2), "prefetch": hold(mc.Prefetch(replay.sampler(2))),
            "publisher": hold(store.publisher(ARRAYS)), "subscriber": store.subscriber(), "batch": sampler.sample(),
            "stats": sampler.stats, "workers": mc.Workers(), "compiled": mc.Compiled(ARRAYS),
        }  # fmt: skip


def test_no_object_takes_an_unknown_name(objects):
    for label, thing in objects.items():
        with pytest.raises(AttributeError, match=r"^[^\n]+$"):
            thing.btea = 1.0
        assert not hasattr(thing, "btea"), label
    with pytest.raises(AttributeError, match=r"^Sampler.bta: expected the name .*, got another; did you mean beta\?$"):
        objects["sampler"].bta = 1.0


@pytest.mark.parametrize(
    "name",
    [
        "replay.capacity", "replay.limiter", "replay.spec", "queue.max_unread", "sampler.prioritized", "sampler.stats",
        "sampler.batch_size", "mixture.batch_size", "mixture.samplers", "reader.batch_size", "store.version",
        "writer.lane", "compiled.weights",
    ],
)  # fmt: skip
def test_a_constant_is_not_assigned(objects, name):
    label, attribute = name.split(".")
    before = getattr(objects[label], attribute)
    with pytest.raises(AttributeError):
        setattr(objects[label], attribute, 5)
    assert getattr(objects[label], attribute) is before or getattr(objects[label], attribute) == before


def test_values_that_count_are_assigned(objects):
    objects["writer"].policy_version = 3
    objects["batch"].reward = objects["batch"].reward * 2
    objects["sampler"].beta = 1.0
    assert (objects["writer"].policy_version, objects["sampler"].beta) == (3, 1.0)


def test_a_users_subclass_has_attributes_of_its_own():
    class Mine(mc.ReplayBuffer):
        def mark(self) -> "Mine":
            self.note = "mine"
            return self

    with Mine.create(SPEC, 8) as replay:
        replay.mark().more = 1
        assert (replay.note, replay.more) == ("mine", 1)


@pytest.mark.long  # it imports torch
def test_every_public_class_checks_assignments():
    classes = {name: getattr(mc, name) for name in dir(mc) if inspect.isclass(getattr(mc, name))}
    free = [
        name for name, kind in classes.items()
        if not issubclass(kind, (tuple, Exception)) and kind.__setattr__ is object.__setattr__
        and not getattr(kind, "_is_protocol", False)
    ]  # fmt: skip
    assert {*free} <= FREE


def weights(replay: mc.ReplayBuffer, *betas: float | None, **options: Any) -> list[list[float]]:
    """The weights of a batch of both rows, of which one has a mass of 1 and the other of 4, for each beta."""
    sampler = replay.sampler(2, seed=0, min_size=1, prioritized=mc.Prioritized(alpha=1.0, epsilon=0.0, **options))
    sampler.update_priorities(sampler.sample(64).index, np.ones(64))
    found = []
    for beta in betas:
        batch = sampler.sample(64, beta=beta)
        sampler.update_priorities(batch.index, np.where(batch.obs > 0, 4.0, 1.0))
        batch = sampler.sample(64, beta=beta)
        found.append(sorted({*batch.weight.tolist()}))
    return found


@pytest.fixture
def two_rows() -> Iterator[mc.ReplayBuffer]:
    with mc.ReplayBuffer.create(SPEC, 100) as replay, replay.writer() as writer:
        writer.add_batch(np.array([0.0, 1.0]), np.zeros(2), np.zeros(2), [True, True])
        yield replay


def test_beta_of_a_call_weighs_that_batch(two_rows):
    found = weights(two_rows, 0.5, 1.0, 0.0, None, beta=0.25)
    assert np.allclose([lowest[0] for lowest in found], [0.5, 0.25, 1.0, 4**-0.25])


def test_an_assigned_beta_stays_and_is_saved(two_rows, tmp_path):
    sampler = two_rows.sampler(2, prioritized=mc.Prioritized(beta_steps=10, beta=0.0))
    old = sampler.state_dict()
    sampler.sample()
    assert sampler.beta == 0.1
    sampler.beta = 0.5
    sampler.sample()
    assert sampler.beta == 0.5
    two_rows.save(tmp_path / "replay", sampler)
    again = two_rows.sampler(2, prioritized=mc.Prioritized(beta_steps=10, beta=0.0))
    with mc.ReplayBuffer.load(tmp_path / "replay") as saved:
        again.load_state_dict(saved.sampler_state)
    assert again.beta == 0.5
    again.load_state_dict(old)
    assert again.beta == 0.0


def test_beta_rises_with_the_environments_steps():
    with mc.ReplayBuffer.create(SPEC, 4) as replay, replay.writer() as writer:
        sampler = replay.sampler(1, prioritized=mc.Prioritized(beta=0.5, beta_inserts=10))
        found = []
        for _ in range(12):
            writer.add(0.0, 0.0, 0.0, terminated=True)
            sampler.sample(1)
            found.append(sampler.beta)
        assert np.allclose(found, [min(1.0, 0.5 + step / 20) for step in range(1, 13)])


def sampler(call: Any, **options: Any) -> None:
    with mc.ReplayBuffer.create(SPEC, 4) as replay:
        call(replay.sampler(1, **options))


def assign_beta(beta: Any) -> None:
    sampler(lambda one: setattr(one, "beta", beta), prioritized=mc.Prioritized())


UNIFORM = "beta: expected a sampler with prioritized=Prioritized(...), got a uniform one"
REFUSED: list[Refused] = [
    *each_bad(assign_beta, "a number from 0 to 1", beta=[-0.1, 1.5, True, "1", None]),
    (partial(sampler, lambda one: one.sample(beta=2), prioritized=mc.Prioritized()), "beta: expected a number from 0"),
    (partial(sampler, lambda one: one.sample(beta=0.5)), TypeError, UNIFORM),
    (partial(sampler, lambda one: setattr(one, "beta", 0.5)), TypeError, UNIFORM),
    (lambda: sampler(None, prioritized=mc.Prioritized(beta_steps=3, beta_inserts=4)),
        "prioritized.beta_inserts: expected None beside beta_steps, got 4"),
]  # fmt: skip
test_refuses = refusals(REFUSED)
