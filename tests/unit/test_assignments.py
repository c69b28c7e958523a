"""An assignment to a public object takes effect or is refused."""

import inspect
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
from refused import check_refused

import marlcore as mc

SPEC = mc.TransitionSpec(mc.Field(), mc.Field())
ARRAYS = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
CONSTANTS = {"replay": "capacity", "queue": "max_unread", "sampler": "prioritized", "writer": "lane", "reader": "stats"}


@pytest.fixture
def objects():
    with ExitStack() as stack:
        hold = stack.enter_context
        replay, queue = hold(mc.ReplayBuffer.create(SPEC, 20, lanes=3)), hold(mc.TrajectoryQueue.create(SPEC, 20))
        store, writer = hold(mc.ParameterStore.create(ARRAYS)), hold(replay.writer())
        writer.add_batch(np.zeros(4), np.zeros(4), np.zeros(4))
        sampler = replay.sampler(2, prioritized=mc.Prioritized(beta=0.0, beta_steps=10))
        yield {
            "replay": replay, "queue": queue, "store": store, "writer": writer, "sampler": sampler,
            "vector writer": hold(replay.vector_writer([1, 2])), "reader": hold(queue.reader(2)),
            "mixture": mc.Mixture([replay], [1.0], 2), "prefetch": hold(mc.Prefetch(replay.sampler(2))),
            "publisher": hold(store.publisher(ARRAYS)), "subscriber": store.subscriber(), "batch": sampler.sample(),
            "stats": sampler.stats, "workers": mc.Workers(), "compiled": mc.Compiled(ARRAYS),
        }  # fmt: skip


def test_unknown_names_and_constants_are_refused(objects):
    for label, thing in objects.items():
        for name in ("bta", *filter(None, [CONSTANTS.get(label)])):
            with pytest.raises(AttributeError, match=r"^[^\n]+$"):
                setattr(thing, name, 5)
            assert getattr(thing, name, None) != 5
    with type("Users", (mc.ReplayBuffer,), {}).create(SPEC, 8) as replay:
        replay.note = "its own"


@pytest.mark.long  # it imports torch
def test_every_public_class_checks_assignments():
    """Only an environment does not, since wrappers may keep values on it."""
    kinds = [kind for name in dir(mc) if inspect.isclass(kind := getattr(mc, name))]
    free = [
        kind for kind in kinds if kind.__setattr__ is object.__setattr__ and not getattr(kind, "_is_protocol", False)
    ]
    assert [kind for kind in free if not issubclass(kind, (tuple, Exception))] == [mc.TreasureHunt]


def test_an_assigned_beta_stays_and_is_saved_and_that_of_a_call_does_not(objects):
    sampler, writer = objects["sampler"], objects["writer"]
    old = sampler.state_dict()
    assert sampler.beta == 0.1
    writer.add(1.0, 0.0, 0.0, terminated=True)
    sampler.update_priorities(sampler.sample(4).index, np.ones(4))
    for _ in range(20):
        batch = sampler.sample(4)
        sampler.update_priorities(batch.index, np.where(batch.obs > 0, 7.0, 1.0))
    lowest = [sampler.sample(4, beta=beta).weight.min() for beta in (0.0, 0.5, 1.0)]
    assert np.allclose(lowest, [7.0 ** (-0.6 * beta) for beta in (0.0, 0.5, 1.0)])
    sampler.beta = 1
    again = objects["replay"].sampler(2, prioritized=sampler.prioritized)
    for state, beta in ((sampler.state_dict(), 1.0), (old, 0.1)):  # an assigned integer is saved as what is loaded
        again.load_state_dict(state)
        assert again.beta == beta


def test_beta_rises_with_the_environments_steps():
    with mc.ReplayBuffer.create(SPEC, 4) as replay, replay.writer() as writer:
        sampler = replay.sampler(1, prioritized=mc.Prioritized(beta=0.5, beta_inserts=10))
        for step in range(1, 13):
            writer.add(0.0, 0.0, 0.0, terminated=True)
            assert sampler.sample().weight == 1 and np.isclose(sampler.beta, min(1.0, 0.5 + step / 20))


def test_a_wrong_beta_is_refused(objects):
    sampler, uniform = objects["sampler"], objects["replay"].sampler(1)
    for beta in (-0.1, 2, True, "1"):
        for call in (lambda beta=beta: setattr(sampler, "beta", beta), partial(sampler.sample, beta=beta)):
            check_refused(call, ValueError, f"beta: expected a number from 0 to 1, got {beta!r}")
    for call in (lambda: setattr(uniform, "beta", 0.5), partial(uniform.sample, beta=0.5)):
        check_refused(call, TypeError, "beta: expected a sampler with prioritized=Prioritized(...), got a uniform one")
