"""`sample(n)` and `read(n)`: a number without a keyword means rows, whatever the batch_size."""

from functools import partial

import numpy as np
import pytest
from model import SPECS, Model, fill
from refused import Refused, each_bad, refusals

import marlcore as mc
from marlcore.kernels import uniform

VECTOR = SPECS["vector"]


def filled(rows: int = 60, spec: mc.TransitionSpec = VECTOR, **options) -> tuple[mc.ReplayBuffer, Model]:
    replay, model = mc.ReplayBuffer.create(spec, 80, lanes=2, **options), Model(spec, 2, 40)
    fill(replay, model, np.random.default_rng(1), [rows // 2] * 2)
    return replay, model


@pytest.mark.parametrize(
    "options",
    [
        {}, {"stack": 3, "n_step": 2}, {"sequence": mc.Sequence(4)}, {"prioritized": mc.Prioritized()},
        {"prioritized": mc.Prioritized(), "sequence": mc.Sequence(4, 1)},
    ],
)  # fmt: skip
def test_a_call_draws_as_many_rows_as_it_says(options):
    replay, model = filled()
    with replay:
        sampler = replay.sampler(32, seed=0, min_size=1, **options)
        window = {name: options[name] for name in ("stack", "n_step", "sequence") if name in options}
        held = []
        for n in (1, 256, None, 7, 33, 32, 256, 5, 1, None):
            batch = sampler.sample(n)
            held.append((batch, batch.obs.copy()))
            assert len(batch.obs) == len(batch.index) == len(batch.weight) == (n or 32)
            model.check(batch, **window, weighted="prioritized" in options)
            if "prioritized" in options:
                sampler.update_priorities(batch.index, np.ones(len(batch)))
        assert all((batch.obs == obs).all() for batch, obs in held)
        assert sampler.stats.drawn == sum(len(batch) for batch, _ in held)


def test_rows_are_equally_likely_whatever_the_size():
    """n rows are the same draws as those of a sampler that was made for n."""
    replay, _ = filled()
    with replay:
        for prioritized in (None, mc.Prioritized()):
            one, other = (replay.sampler(size, seed=3, prioritized=prioritized) for size in (8, 50))
            assert one.sample(50).index.tolist() == other.sample().index.tolist()
            assert one.sample().index.tolist() == other.sample(8).index.tolist()


def test_no_size_compiles_a_kernel_again():
    replay, _ = filled()
    with replay:
        sampler = replay.sampler(8)
        sampler.sample()
        compiled = len(uniform.draw.signatures)
        for n in (3, 40):
            sampler.sample(n)
        assert len(uniform.draw.signatures) == compiled


def test_a_batch_needs_as_many_transitions_as_it_has_rows():
    replay, _ = filled(20)
    with replay:
        usual, eager = replay.sampler(256), replay.sampler(256, min_size=1)
        assert len(usual.sample(len(replay))) == len(replay) and not usual.can_sample()
        assert eager.can_sample() and len(eager.sample(200)) == 200
        for call in (partial(usual.sample, len(replay) + 1), usual.sample):
            with pytest.raises(mc.NotEnoughData, match=f"transitions, got {len(replay)}$"):
                call()


def test_the_limiter_counts_the_rows_of_each_call():
    with mc.ReplayBuffer.create(VECTOR, 100, limiter=mc.RateLimiter(1.0, 40, 64.0, lead=0.0)) as replay:
        model = Model(VECTOR, 1, 100)
        fill(replay, model, np.random.default_rng(1), [60])
        due = len(replay) - 40
        sampler = replay.sampler(8, seed=0, min_size=1)
        with pytest.raises(mc.NotEnoughData, match="the limiter expects at least"):
            sampler.sample(due + 1)
        sampler.sample(due - 8)
        assert sampler.due and sampler.can_sample()
        sampler.sample()
        assert not sampler.can_sample()
        with pytest.raises(ValueError, match="tolerance: expected a limiter with at least the batch_size 65, got 64"):
            sampler.sample(65)


def test_a_mixture_draws_its_fractions_of_any_number():
    (first, _), (second, _) = filled(), filled()
    with first, second:
        mixture, counts = mc.Mixture([first, second], [0.25, 0.75], 32, seed=0), np.zeros(2)
        for drawn, n in enumerate([4, 100, 8, 4], 1):
            counts += np.bincount(mixture.sample(n).source, minlength=2)
            assert abs(counts - np.array([0.25, 0.75]) * sum([4, 100, 8, 4][:drawn])).max() < 1
        assert mixture.can_sample() and len(mixture.sample()) == 32


def test_a_prefetch_draws_what_was_asked_for_last():
    replay, _ = filled()
    with replay, mc.Prefetch(replay.sampler(32, seed=0), depth=2) as batches:
        assert [len(batches.sample(n)) for n in (None, 8, 8, 40, None, 8)] == [32, 8, 8, 40, 32, 8]
        with pytest.raises(mc.NotEnoughData, match="expected at least 70 transitions"):
            batches.sample(70)
        assert len(batches.sample(5)) == 5


@pytest.mark.parametrize("length", [None, 4])
def test_a_reader_takes_as_many_rows_as_the_call_says(length):
    spec = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"))
    with mc.TrajectoryQueue.create(spec, 200) as queue, queue.writer() as writer, queue.reader(3, length=length) as r:
        writer.add_batch(np.arange(150), np.arange(150), np.zeros(150))
        taken = [r.read(n).action.ravel() for n in (None, 5, 1, 20, None)]
        assert [len(rows) // (length or 1) for rows in taken] == [3, 5, 1, 20, 3]
        assert np.concatenate(taken).tolist() == list(range(32 * (length or 1)))


def test_a_begun_batch_of_a_queue_keeps_its_size():
    """Rows of a full lane whose writer waits were taken already."""
    spec = mc.TransitionSpec(mc.Field((), "int64"), mc.Field((), "int64"))
    with mc.TrajectoryQueue.create(spec, 8) as queue, queue.writer(timeout=0.0) as writer, queue.reader(12) as reader:
        with pytest.raises(TimeoutError):
            for t in range(9):
                writer.add(t, t, 0.0)
        with pytest.raises(mc.NotEnoughData):
            reader.read()
        with pytest.raises(ValueError, match=r"^n: expected 12, for which \d were taken already, got 4$"):
            reader.read(4)
        for t in range(8, 14):
            writer.add(t, t, 0.0)
        assert reader.read(12).action.tolist() == list(range(12))


def on(kind: str, *arguments) -> object:
    if kind == "read":
        spec = mc.TransitionSpec(mc.Field(), mc.Field())
        with mc.TrajectoryQueue.create(spec, 8) as queue, queue.reader(2) as reader:
            return reader.read(*arguments)
    replay, _ = filled()
    with replay:
        if kind == "prefetch":
            with mc.Prefetch(replay.sampler(4)) as batches:
                return batches.sample(*arguments)
        if kind == "mixture":
            return mc.Mixture([replay], [1.0], 4).sample(*arguments)
        return replay.sampler(4).sample(*arguments)


def pull_by_a_number() -> None:
    with mc.ParameterStore.create({"w": np.zeros(2)}) as store:
        store.subscriber().pull(5)


WHOLE = "an integer of at least 1"
KINDS = "sampler", "mixture", "prefetch", "read"
BAD = [0, -1, True, 2.0, 0.5, "8"]
REFUSED: list[Refused] = [
    *[row for kind in KINDS for row in each_bad(lambda n, kind=kind: on(kind, n), WHOLE, n=BAD)],
    *[(partial(on, kind, 4, 1.0), TypeError, "positional argument") for kind in KINDS],
    # What users of other libraries would take for rows, workers, copies or a capacity
    (partial(mc.Prefetch, None, 256), TypeError, "positional argument"),
    (partial(mc.Workers, 4), TypeError, "positional argument"),
    (partial(mc.Prioritized, 100_000, 0.6, 0.4), TypeError, "positional argument"),
    (pull_by_a_number, TypeError, "positional argument"),
    *[(partial(section, 256), TypeError, "positional argument")
        for section in (mc.ActorConfig, mc.LearnerConfig, mc.StopConfig, mc.EvaluationConfig)],
]  # fmt: skip
test_refuses = refusals(REFUSED)
