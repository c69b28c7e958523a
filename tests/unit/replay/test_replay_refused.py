"""Refused arguments of a replay's doors: the replay itself, writers, samplers, mixtures, prefetches, limiters."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from refused import Refused, check_refused

import marlcore as mc
from marlcore.memory import Segment

SCALAR = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"))
VECTOR = mc.TransitionSpec(mc.Field((3,)), mc.Field((), "int64"))
NEXT_OBS = mc.TransitionSpec(mc.Field(), mc.Field(), next_obs=True)
STATE = mc.TransitionSpec(mc.Field(), mc.Field((), "int64"), {"h": mc.Field((2,), every=4)})
GOALS = {name: mc.Field((3,)) for name in ("observation", "achieved_goal", "desired_goal")}


def on(call: Callable[[mc.ReplayBuffer], object], spec=SCALAR, capacity=10, lanes=2, **options) -> Callable[[], object]:
    """A call with a new replay."""

    def with_replay() -> None:
        with mc.ReplayBuffer.create(spec, capacity, lanes, **options) as replay:
            call(replay)

    return with_replay


def create(**arguments) -> Callable[[], object]:
    return partial(mc.ReplayBuffer.create, **{"spec": SCALAR, "capacity": 10} | arguments)


def attach_another_kind() -> None:
    other = Segment.create("other", {"kind": "weights"}, 100)
    mc.ReplayBuffer.attach(other.handle)


def sampler(spec=SCALAR, capacity=10, lanes=2, **options) -> Callable[[], object]:
    return on(lambda replay: replay.sampler(**{"batch_size": 4} | options), spec, capacity, lanes)


def sequences(spec=SCALAR, **options) -> Callable[[], object]:
    return sampler(spec, 12, 1, **options)


def initial(**extras: mc.Field) -> Callable[[], object]:
    return sampler(mc.TransitionSpec(mc.Field(), mc.Field(), extras), prioritized=mc.Prioritized(initial="p"))


def hindsight(obs=GOALS, next_obs=False, **options) -> Callable[[], object]:
    chosen = {"hindsight": mc.Hindsight(compute_reward=len)} | options
    return sampler(mc.TransitionSpec(obs, mc.Field(), next_obs=next_obs), **chosen)


def mixture(fractions=(0.5, 0.5), batch_size=8, **options) -> Callable[[], object]:
    return on(lambda replay: mc.Mixture([replay, replay], fractions, batch_size, **options))


def mixture_of(*others: Callable[[mc.ReplayBuffer], object]) -> Callable[[], object]:
    return on(lambda replay: mc.Mixture([replay, *(other(replay) for other in others)], [0.5, 0.5], 8))


def prefetch(**options) -> Callable[[], object]:
    return on(lambda replay: mc.Prefetch(replay.sampler(8), **options))


def limiter(samples_per_insert=1.0, min_size=1, tolerance=1.0) -> Callable[[], object]:
    return partial(mc.RateLimiter, samples_per_insert, min_size, tolerance)


def limited(call: Callable[[mc.ReplayBuffer], object], capacity=64) -> Callable[[], object]:
    return on(call, capacity=capacity, lanes=1, limiter=mc.RateLimiter(2.0, 4, 8.0))


def sample_by(share: float) -> Callable[[mc.ReplayBuffer], object]:
    def call(replay: mc.ReplayBuffer) -> object:
        sampler = replay.sampler(1)
        sampler.limit_to(lambda _: share)
        return sampler.sample()

    return call


INTEGER = "expected an integer of at least 1, got"
TIMEOUT = "timeout: expected seconds of at least 0 or None, got"
NO_TIMEOUTS = (-1, -0.5, "1", math.nan)
INITIAL = "prioritized.initial: expected the name of a float32 () extra, got 'p', which is"
NUMBERS = "expected a finite number above 0, got"
WINDOW = "stack + n_step + sequence.length - 1: expected at most the 12 rows of a lane, got"
PERIOD = "sequence.period: expected a multiple of the 4 rows from one stored state to the next, got"
NO_BOUND = (0, -1, 1.5, "2", None, True)
NO_NUMBER = (0, -1.0, math.nan, math.inf, "2", None, True)

REPLAY: dict[str, Refused] = {
    "spec": (create(spec={"obs": 1}), TypeError, "spec: expected a TransitionSpec, got "),
    **{f"capacity {n!r}": (create(capacity=n), ValueError, f"capacity: {INTEGER} {n!r}") for n in (0, -5, 10.0, True)},
    **{f"lanes {n!r}": (create(lanes=n), ValueError, f"lanes: {INTEGER} {n!r}") for n in (0, None)},
    "capacity 1": (create(capacity=1), ValueError, "capacity: expected at least 2, 2 rows a lane for a truncated"),
    "capacity 2**32": (create(capacity=2**32), ValueError, "capacity: expected from 1 rows, one a lane, to 4294967295"),
    "capacity 3 in 4 lanes": (create(capacity=3, lanes=4), ValueError, "capacity: expected from 4 rows, one a lane"),
    "name": (create(name="a/b"), ValueError, "name: expected letters, digits, '_' and '.', got 'a/b'"),
    "capacity beyond memory": (create(capacity=2**32 - 1), mc.SharedMemoryFull, "/dev/shm: "),
    "limiter": (create(limiter=2.0), TypeError, "limiter: expected a RateLimiter or None, got 2.0"),
    "capacity with a limiter": (
        create(capacity=5, lanes=2, limiter=mc.RateLimiter(1.0, 1, 1.0)), ValueError,
        "capacity: expected at least 6 with a limiter, 3 rows a lane, got 5",
    ),
    "another spec": (
        on(lambda replay: mc.ReplayBuffer.attach(replay.handle, VECTOR)), mc.LayoutMismatch,
        ": spec obs: expected float32 (), got float32 (3,)",
    ),
    "another kind": (
        attach_another_kind, mc.SegmentCorrupt,
        "expected a replay, got another kind of segment",
    ),
}  # fmt: skip

TWO = np.zeros(2)
DOORS: dict[str, Callable[[mc.ReplayBuffer], Callable[..., object]]] = {
    "add": lambda replay: replay.writer().add,
    "add_batch": lambda replay: replay.writer().add_batch,
    "vector": lambda replay: replay.vector_writer().add,
}
WRITERS: dict[str, Refused] = {
    **{
        f"lane {n!r}": (on(lambda r, n=n: r.writer(n)), ValueError, f"lane: expected 0 to 1, got {n!r}")
        for n in (-1, 2, "0", None, 0.0)
    },
    **{
        f"lanes {n!r}": (
            on(lambda r, n=n: r.vector_writer(n)), ValueError,
            f"lanes: expected different numbers from 0 to 1, got {n!r}",
        )
        for n in ([0, 2], [-1], [1, 1], [], ["a"])
    },
    **{
        f"{name} timeout {t!r}": (on(lambda r, n=name, t=t: getattr(r, n)(timeout=t)), ValueError, f"{TIMEOUT} {t!r}")
        for name in ("writer", "vector_writer") for t in NO_TIMEOUTS
    },
    **{
        f"{door} with next_obs, {says}": (
            on(lambda r, door=door, v=value, fields=fields: DOORS[door](r)(v, v, v, **fields), NEXT_OBS), ValueError,
            says,
        )
        for door, value, true in (("add", 0.0, True), ("add_batch", TWO, TWO == 0), ("vector", TWO, TWO == 0))
        for fields, says in (
            ({"truncated": true, "final_obs": value, "next_obs": value}, "final_obs: expected None"),
            ({}, "extras: expected the fields ['next_obs'], got []"),
        )
    },
    "shared without next_obs": (
        on(lambda replay: replay.writer(shared=True)), ValueError,
        "shared: expected False, since this spec's rows follow one another; use next_obs=True",
    ),
}  # fmt: skip

SAMPLERS: dict[str, Refused] = {
    **{
        f"{name}={n!r}": (sampler(**{name: n}), ValueError, f"{name}: {INTEGER} {n!r}")
        for name, values in {"batch_size": (0, 2.0), "stack": (0, True), "n_step": (-1,), "min_size": (0, "1")}.items()
        for n in values
    },
    **{
        f"gamma={n!r}": (sampler(gamma=n), ValueError, f"gamma: expected a number from 0 to 1, got {n!r}")
        for n in (1.1, math.nan, "0.9")
    },
    **{
        f"lanes={n!r}": (
            on(lambda replay, n=n: replay.sampler(4, lanes=n)), ValueError,
            f"lanes: expected a range within 0 to 1, got {n}",
        )
        for n in (range(0), range(1, 3), range(-1, 2), range(0, 2, 2), range(3, 1), [0, 1], 1)
    },
    **{
        f"a batch of {rows}": (sampler(batch_size=rows), ValueError, f" bytes of memory, got {rows}, which takes ")
        for rows in (2**40, 2**63, 2**70)  # NumPy's error names neither; a little less would end the process
    },
    "stack of a lane": (sampler(stack=5), ValueError, "stack + n_step: expected at most the 5 rows of a lane, got 5"),
    "n_step of a lane": (sampler(n_step=5), ValueError, "stack + n_step: expected at most the 5 rows of a lane, got 1"),
    "stack with next_obs": (sampler(NEXT_OBS, stack=2), ValueError, "stack, n_step: expected 1 and 1"),
    "pad": (sampler(pad="edge"), ValueError, "pad: expected 'repeat' or 'zero', got 'edge'"),
    "sequence longer than a lane": (sequences(sequence=mc.Sequence(12)), ValueError, f"{WINDOW} 1 + 1 + 11"),
    "with its stack": (sequences(sequence=mc.Sequence(8), stack=3, n_step=3), ValueError, f"{WINDOW} 3 + 3 + 7"),
    "period between states": (sequences(STATE, sequence=mc.Sequence(6)), ValueError, f"{PERIOD} 6"),
    "period shorter than states": (sequences(STATE, sequence=mc.Sequence(8, 0, 2)), ValueError, f"{PERIOD} 2"),
    "with next_obs": (sequences(NEXT_OBS, sequence=mc.Sequence(2)), ValueError, "sequence: expected None, since"),
    "sequence 5": (sequences(sequence=5), TypeError, "sequence: expected a Sequence or None, got 5"),
    "sequence in a short lane": (
        sampler(capacity=14, lanes=1, sequence=mc.Sequence(8, 2), n_step=2), ValueError,
        "sequence: expected a lane of at least 15 rows, so that it always holds a whole window of 8 transitions",
    ),
    **{
        f"infinite masses with alpha {alpha}": (
            sampler(prioritized=mc.Prioritized(alpha, epsilon=epsilon)), ValueError,
            "prioritized: expected alpha and epsilon with finite masses, got ",
        )
        for alpha, epsilon in ((2.0, 1e200), (2000.0, 1.0))
    },
    "initial not stored": (initial(), ValueError, f"{INITIAL} none of them"),
    "initial of float64": (initial(p=mc.Field((), "float64")), ValueError, f"{INITIAL} float64 ()"),
    "initial of a vector": (initial(p=mc.Field((1,))), ValueError, f"{INITIAL} float32 (1,)"),
    "hindsight 4": (hindsight(hindsight=4), TypeError, "hindsight: expected a Hindsight or None, got 4"),
    "hindsight without a function": (
        hindsight(hindsight=mc.Hindsight()), ValueError, "hindsight.compute_reward: expected a function, got None",
    ),
    "hindsight of several steps": (
        hindsight(n_step=2), ValueError, "hindsight: expected single transitions with n_step=1, got n_step=2",
    ),
    "hindsight of sequences": (
        hindsight(sequence=mc.Sequence(2), capacity=20), ValueError,
        "hindsight: expected single transitions with n_step=1, got a sequence",
    ),
    "hindsight with next_obs": (hindsight(next_obs=True), ValueError, "hindsight: expected None, since rows of a spec"),
    **{
        f"hindsight of {name}": (
            hindsight(obs), ValueError,
            f"hindsight: expected achieved_goal and desired_goal of one shape and dtype in obs, got {got}",
        )
        for name, obs, got in (
            ("no goals", mc.Field(), "{'observation': 'float32 ()'}"),
            ("other goals", {**GOALS, "desired_goal": mc.Field((2,))}, "{'observation': 'float32 (3,)', 'achieved"),
        )
    },
    **{
        f"a share of {n}": (limited(lambda r, n=n: r.sampler(1).limit_to(n)), ValueError, f"limit_to: expected {says}")
        for n, says in {0: "a number in (0, 1], got 0", 1.5: "a number in (0", 0.05: "at least batch_size / "}.items()
    },
    **{
        f"a function's share of {n}": (limited(sample_by(n)), ValueError, f"limit_to: expected {says}")
        for n, says in {2.0: "a number in (0, 1], got 2", 1e-12: "at least batch_size / "}.items()
    },
    "a share without a limiter": (
        on(lambda replay: replay.sampler(4).limit_to(0.5)), ValueError, "limit_to: expected a replay with a limiter",
    ),
    "batch beyond the limiter": (
        limited(lambda replay: replay.sampler(9)), ValueError,
        "tolerance: expected a limiter with at least the batch_size 9, got 8",
    ),
    "batch beyond the lead": (
        lambda: create(limiter=mc.RateLimiter(2.0, 4, 8.0, lead=1.0))().sampler(8), ValueError,
        "batch_size + samples_per_insert - lead = 9, or samplers and writers would both wait, got 8",
    ),
}  # fmt: skip

OPTIONS: dict[str, Refused] = {
    **{
        f"{name}={n!r}": (partial(mc.Prioritized, **{name: n}), ValueError, f"{name}: expected {says}, got {n!r}")
        for name, n, says in (
            ("alpha", -0.1, "a finite number of at least 0"), ("alpha", math.nan, "a finite number of at least 0"),
            ("alpha", math.inf, "a finite number of at least 0"), ("beta", -0.1, "a number from 0 to 1"),
            ("beta", 1.5, "a number from 0 to 1"), ("beta", "1", "a number from 0 to 1"),
            ("epsilon", -1e-9, "a finite number of at least 0"), ("epsilon", True, "a finite number of at least 0"),
            ("beta_steps", 0, "an integer of at least 1"), ("beta_steps", 1.5, "an integer of at least 1"),
        )
    },
    **{
        f"Hindsight({n!r}, {strategy!r})": (partial(mc.Hindsight, n, strategy), ValueError, says)
        for n, strategy, says in (
            (0, "future", "k: expected an integer from 1 to 2147483647, got 0"),
            (4, "last", "strategy: expected future, final or episode, got 'last'"),
        )
    },
    **{
        f"Hindsight({name}=4)": (
            partial(mc.Hindsight, **{name: 4}), TypeError,
            f"{name}: expected a function of achieved goals, desired goals and info, or None, got 4",
        )
        for name in ("compute_reward", "compute_terminated")
    },
    **{
        f"Sequence{arguments}": (partial(mc.Sequence, *arguments), ValueError, f"sequence.{says}")
        for arguments, says in {
            (0,): f"length: {INTEGER} 0", (True,): f"length: {INTEGER} True",
            (4, -1): "burn_in: expected an integer of at least 0, got -1",
            (4, 4): "burn_in: expected less than the length 4, got 4",
            (4, 9): "burn_in: expected less than the length 4, got 9",
            (4, 0, 0): f"period: {INTEGER} 0", (4, 0, 2.0): f"period: {INTEGER} 2.0",
        }.items()
    },
    **{
        f"{name} {n!r}": (limiter(**{name: n}), ValueError, f"{name}: {NUMBERS} {n!r}")
        for name in ("samples_per_insert", "tolerance") for n in NO_NUMBER
    },
    **{f"min_size {n!r}": (limiter(min_size=n), ValueError, f"min_size: {INTEGER} {n!r}") for n in NO_BOUND},
    "tolerance below an add": (limiter(8, 10, 2), ValueError, "tolerance: expected at least samples_per_insert = 8, "),
}  # fmt: skip

MIXTURES: dict[str, Refused] = {
    **{
        f"fractions {n}": (mixture(n), ValueError, "fractions: expected numbers of at least 0 whose sum is 1, got")
        for n in ((0.5, 0.6), (1.5, -0.5), (math.nan, 1.0))
    },
    "one fraction": (mixture([1.0]), ValueError, "fractions: expected one for each of 2 replays, at least one, got"),
    "a word": (mixture([0.5, "x"]), TypeError, "fractions: expected numbers, got"),
    "no replay": (lambda: mc.Mixture([], [], 8), ValueError, "fractions: expected one for each of 0 replays, at least"),
    "batch_size": (mixture(batch_size=0), ValueError, f"batch_size: {INTEGER} 0"),
    "min_size": (mixture(min_size=None), ValueError, f"min_size: {INTEGER} None"),
    "prioritized": (mixture(prioritized=[None]), ValueError, "prioritized: expected one for each of 2 replays, got 1"),
    "lanes": (mixture(lanes=[range(1)]), ValueError, "lanes: expected a range for each of 2 replays, got 1"),
    "no list": (
        on(lambda replay: mc.Mixture(replay, [1.0], 8)), TypeError,
        "replays: expected a list of ReplayBuffers, got <ReplayBuffer ",
    ),
    "a sampler": (
        mixture_of(lambda replay: replay.sampler(8)), TypeError, "replays[1]: expected a ReplayBuffer, got <Sampler ",
    ),
    "other specs": (
        mixture_of(lambda _: mc.ReplayBuffer.create(VECTOR, 100)), mc.LayoutMismatch,
        "replays[1]: spec obs: expected float32 (), got float32 (3,)",
    ),
}  # fmt: skip

PREFETCHES: dict[str, Refused] = {
    **{f"depth {n!r}": (prefetch(depth=n), ValueError, f"depth: {INTEGER} {n!r}") for n in (0, True, 1.5)},
    **{
        f"device {n!r}": (prefetch(device=n), ValueError, f"device: expected a cpu or a cuda device, got {n!r}")
        for n in ("meta", "foo", None)
    },
    "no sampler": (
        on(mc.Prefetch), TypeError, "sampler: expected one, such as replay.sampler(256) makes, got <ReplayBuffer ",
    ),
}  # fmt: skip

REFUSED = {
    f"{door}: {case}": refused
    for door, cases in {
        "replay": REPLAY, "writer": WRITERS, "sampler": SAMPLERS, "options": OPTIONS, "mixture": MIXTURES,
        "prefetch": PREFETCHES,
    }.items()
    for case, refused in cases.items()
}  # fmt: skip


def test_refuses(subtests):
    for case in REFUSED:
        with subtests.test(case):
            if case.startswith("prefetch: device"):
                pytest.importorskip("torch")  # an extra of the core
            check_refused(*REFUSED[case])


def test_limits_of_the_options_are_allowed():
    assert mc.RateLimiter(8, 10, tolerance=8).tolerance == 8
    with mc.ReplayBuffer.create(SCALAR, 11, lanes=2) as replay:
        assert replay.capacity == 10  # whole lanes
        replay.sampler(4, stack=4)
        replay.sampler(4, n_step=4)
    with mc.ReplayBuffer.create(SCALAR, 15) as replay, replay.writer() as writer:
        sampler = replay.sampler(4, sequence=mc.Sequence(8, 2), n_step=2, min_size=1)
        for ticket in range(200):
            writer.add(float(ticket), ticket, 1.0)
            assert sampler.can_sample() or ticket < 9


def test_an_add_that_its_limiter_could_never_admit_is_refused():
    """Either alone; so 2 * tolerance is never less than a batch and the samples of an add together."""
    rows = np.zeros(8)
    with mc.ReplayBuffer.create(SCALAR, 64, limiter=mc.RateLimiter(2.0, 4, 8.0)) as replay, replay.writer() as writer:
        says = "samples_per_insert * rows = 10 for an add of 5, got 8"
        check_refused(lambda: writer.add_batch(rows[:5], rows[:5].astype(int), rows[:5]), ValueError, says)
        assert len(replay) == 0
        assert writer.add_batch(rows[:4], rows[:4].astype(int), rows[:4]) == 0
        replay.sampler(8)
    with mc.ReplayBuffer.create(SCALAR, 8, limiter=mc.RateLimiter(1.0, 1, 100.0)) as replay, replay.writer() as writer:
        says = "reward: expected at most 7 of the lane's 8 rows, final_obs included, got 8"
        check_refused(lambda: writer.add_batch(rows, rows.astype(int), rows), ValueError, says)
        assert writer.add_batch(rows[:7], rows[:7].astype(int), rows[:7]) == 0
