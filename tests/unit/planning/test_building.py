"""Building a graph: it has the same bytes for any number of workers, and errors name the state of a bad model.

More random models: python tests/long.py building 1000
"""

import importlib
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from graph_oracle import graph_lists, longest_paths
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refused import Refused, check_refused, each_bad, refusals
from tiers import long_but
from world_models import Diamonds, Doors, Slippery, Table, World

from marlcore import NotEnoughMemory, WorkerFailed, WorldModelFailed, cgroup
from marlcore.planning import build_graph, expansion, exploration
from marlcore.planning import model as models
from marlcore.planning.building import Watch

MODELS = {
    "doors": Doors(2, 5, 2, 6),
    "slippery": Slippery(2, 5, 8),
    "diamonds": Diamonds(2, 16),
    "unordered": Diamonds(2, 16, named=True),
}


def built(model: Any, **options: Any) -> bytes:
    """Returns the bytes of the model's graph."""
    with build_graph(model, **options) as graph:
        return bytes(graph._segment.body)


def check_random(model: Any, **options: Any) -> None:
    expected = graph_lists(model)
    with build_graph(model, **options) as graph:
        assert graph.to_lists() == expected
        assert graph.level.tolist() == longest_paths(expected.successors)
        assert [graph.successors_of(i).tolist() for i in range(len(graph))] == expected.successors


NAMINGS = {
    "numbers": lambda i: i,
    "pairs": lambda i: (i % 3, i),
    "mixed": lambda i: i if i % 2 else f"s{i}",  # some of which do not compare
    "sets": lambda i: frozenset({i, i + 1}),  # which have only a partial order
}


@st.composite
def acyclic_models(draw: st.DrawFn, most: int = 12) -> Table:
    """Draws a table of up to `most` states, in which each successor follows its state in a hidden order."""
    agents, actions = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    naming = NAMINGS[draw(st.sampled_from(sorted(NAMINGS)))]
    names = [naming(i) for i in range(most)]
    hidden = draw(st.permutations(names))
    profiles = [tuple(i // actions**k % actions for k in range(agents)) for i in range(actions**agents)]
    table: dict[Any, dict[Any, Any]] = {}
    for place, state in enumerate(hidden[:-1]):
        possible = draw(st.lists(st.sampled_from(profiles), unique=True, max_size=len(profiles)))
        table[state] = {profile: draw(_outcomes(hidden[place + 1 :])) for profile in possible}
    return Table(agents, actions, table, hidden[0])


@st.composite
def _outcomes(draw: st.DrawFn, successors: list[Any]) -> list[tuple[float, Any]]:
    weights = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any))
    return [(weight / sum(weights), draw(st.sampled_from(successors))) for weight in weights]


@given(acyclic_models())
@settings(max_examples=20)
def test_random_models_give_what_the_oracle_says(model: Table) -> None:
    check_random(model, workers=1)


@pytest.mark.parametrize("block", [1, 7, 50])
def test_blocks_of_any_size_give_the_same(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large graphs are sorted and written in blocks; a state with more outcomes than a block is a block of its own."""
    monkeypatch.setattr("marlcore.planning.order.BLOCK", block)
    for model in (Slippery(), Doors(), Diamonds(), Diamonds(named=True), Table(1, 1, {})):
        check_random(model, workers=1)


@pytest.mark.parametrize(
    ("name", "workers", "batch"), long_but([("slippery", 2, 7)], product(MODELS, (2, 3, 8), (1, 7)))
)
def test_any_number_of_workers_gives_the_same_bytes(name: str, workers: int, batch: int) -> None:
    alone = built(MODELS[name], workers=1)
    for fork in (False, True):
        assert built(MODELS[name], workers=workers, batch=batch, fork=fork) == alone


def test_forked_workers_need_not_import_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_slowly.py").write_text(
        "import world_models\nwith open(__file__ + '.log', 'a') as log:\n    log.write('.')\n"
        "class Model(world_models.Slippery): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("imported_slowly").Model()
    for fork, imports in ((True, 1), (False, 2)):
        built(model, workers=2, batch=5, fork=fork)
        assert (tmp_path / "imported_slowly.py.log").stat().st_size == imports


class Slow(World):
    """A model whose transitions take 5 ms in this process, and no time in a worker."""

    def __init__(self, inner: World) -> None:
        self.__dict__.update(vars(inner))
        self._inner, self._home = inner, os.getpid()
        self.asked = 0

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        self.asked += 1
        if os.getpid() == self._home:
            threading.Event().wait(0.005)
        return self._inner.transition_probabilities(state, profile)


@pytest.mark.long
def test_workers_help_once_a_graph_takes_long() -> None:
    inner = Slippery(2, 5, 12)
    model, alone = Slow(inner), built(inner, workers=1)
    with build_graph(inner, workers=1) as graph:
        most = 0.8 * len(graph) * graph.profiles
    while not 0 < model.asked < most:  # again if the worker came late
        model.asked = 0
        assert built(model, workers=2) == alone


def test_a_small_graph_starts_no_process(python_is: Any) -> None:
    python_is("/nowhere/python")  # a server could not start
    with build_graph(MODELS["diamonds"], workers=8) as graph:
        assert graph.to_lists() == graph_lists(MODELS["diamonds"])


def test_the_model_is_in_its_initial_state_afterwards() -> None:
    class Moving(Doors):
        def transition_probabilities(self, state: Any, profile: Any) -> Any:
            self.set_state(state)
            return super().transition_probabilities(state, profile)

    model = Moving()
    model.set_state((3, ((1, 1), (0, 0)), True))
    build_graph(model).close()
    assert model.get_state() == (0, ((0, 0), (0, 1)), False)


def building(model: Any, **options: Any) -> Callable[[], object]:
    return lambda: build_graph(model, **options)


def loop(length: int) -> Table:
    return Table(1, 1, {i: {(0,): [(1.0, (i + 1) % length)]} for i in range(length)})


def chances(stored: bool, *outcomes: Any) -> Callable[[], object]:
    table = {0: {(0, 0): [(1.0, 3)], (1, 0): [*outcomes], (1, 1): [(0.1, 5)]}}
    return building(Table(2, 2, table), probabilities=stored)


def levelled(level_of: Callable[[Any], Any]) -> Callable[[], object]:
    return building(Doors(), level_fct=level_of)


class Stuck:
    def __reduce__(self) -> Any:
        raise RuntimeError("no")


PROBABILITIES = "transition_probabilities: expected probabilities of at least 0 that sum to 1, got"
LEVELS = "level_fct: expected every transition to lower the level, or all to raise it, got level"
BEHIND_A_LOOP = {0: {(0,): [(1.0, 1)]}, 1: {(0,): [(1.0, 2)]}, 2: {(0,): [(0.5, 3), (0.5, 1)]}}
TWO_FAILURES = {0: {(0,): [(0.5, 1), (0.5, 2)]}, 1: {(0,): [(0.9, 3)]}, 2: {(0,): [None]}}
WHERE = "in state 0 with profile (1, 0)"
HASHABLE = "state: expected something hashable, got"
REFUSED: list[Refused] = [
    (building(loop(1)), ValueError, "transitions: expected no cycle, got 0 -> 0"),
    (building(Table(1, 1, BEHIND_A_LOOP)), ValueError, "transitions: expected no cycle, got 1 -> 2 -> 1"),
    (building(loop(20)), ValueError, "4 -> 5 -> 6 -> 7 -> ... (12 more) -> 0"),
    *((chances(stored, *outcomes), ValueError, f"{PROBABILITIES} {[p for p, _ in outcomes]} {WHERE}")
      for stored in (True, False)
      for outcomes in ([(0.5, 1), (0.6, 2)], [(1.5, 1), (-0.5, 2)], [(math.nan, 1)], [])),
    (building(Table(1, 1, TWO_FAILURES)), ValueError, f"{PROBABILITIES} [0.9] in state 1 "),
    (building(Table(1, 1, {}, start=[0])), TypeError, f"{HASHABLE} [0], the initial state"),
    (building(Table(2, 2, {0: {(0, 1): [(0.5, 1), (0.5, {"x": 1})]}})), TypeError,
        f"{HASHABLE} {{'x': 1}}, a successor of 0 with profile (0, 1)"),
    (building(Table(1, 1, {0: {(0,): [(0.1, i) for i in range(1, 10)] + [(0.1, Stuck())]}}), workers=1), TypeError,
        "states: expected something that can be pickled (RuntimeError: no)"),
    (building(Table(32, 2, {})), ValueError, "profiles: expected at most 2^31 profiles, got 2^32 for 32 agents"),
    (building(Table(0, 2, {})), ValueError, "agents: expected an integer of at least 1, got 0"),
    (building(Table(2, 0, {})), ValueError, "action_space.n: expected an integer of at least 1, got 0"),
    (levelled(lambda state: 4), ValueError, f"{LEVELS} 4 in state (0, "),
    (levelled(lambda state: [0, 1, 2, 1, 0][state[0]]), ValueError, f"{LEVELS} 2 in state (2, "),
    (levelled(lambda state: [4, 3, 3, 2, 1][state[0]]), ValueError, f"{LEVELS} 3 in state (1, "),
    (levelled(lambda state: 0.5), ValueError, "expected an integer from -4611686018427387904 to "),
    *each_bad(partial(build_graph, Doors()), "an integer of at least 1", workers=[0], batch=[0]),
    *each_bad(partial(build_graph, Doors()), "True, False or None", fork=["spawn"]),
    *each_bad(partial(build_graph, Doors()), "a number in [0, 1)", min_free_memory_fraction=[1.0]),
    *each_bad(partial(build_graph, Doors()), "True, False, 'float64' or 'float32'", probabilities=["float16", 1]),
]  # fmt: skip
test_refuses = refusals(REFUSED)


class Fails(World):
    """A model that fails in one of its states, or in each state that a worker expands."""

    def __init__(self, length: int, bad: int, in_workers: bool = False) -> None:
        super().__init__(1, 2, 0)
        self.length, self.bad, self.in_workers = length, bad, in_workers

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        in_worker = multiprocessing.current_process().name.startswith("planner")
        if (state, profile) == (self.bad, (1,)) or (self.in_workers and in_worker):
            raise RuntimeError("the model is on fire")
        after = 2 * state + 1 + profile[0]
        return [(1.0, after)] if after < self.length else None


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_raises_in_one_state_ends_the_call(workers: int) -> None:
    with pytest.raises(WorldModelFailed, match=r"in state 1234 with profile \(1,\), in ") as caught:
        build_graph(Fails(3000, 1234), workers=workers, batch=50)
    assert (caught.value.state, caught.value.profile) == (1234, (1,))
    assert 'raise RuntimeError("the model is on fire")' in caught.value.traceback
    assert caught.value.reason == "environment" and isinstance(caught.value, WorkerFailed)
    assert (caught.value.worker == "this process") == isinstance(caught.value.__cause__, RuntimeError)


TRIPLES = Table(1, 1, {0: {(0,): [(1.0, 1, 2)]}})


@pytest.mark.usefixtures("shared_fork_server")
@pytest.mark.parametrize(
    ("model", "workers", "says", "worker"),
    [
        (Fails(10_000, -1, in_workers=True), 2, "in state .*, in planner-0:", "planner-0"),
        (TRIPLES, 1, r"in state 0 with profile \(0,\)", "this process"),
    ],
    ids=["in a worker", "no pairs"],
)
def test_a_models_failure_names_the_process(model: World, workers: int, says: str, worker: str) -> None:
    with pytest.raises(WorldModelFailed, match=says) as caught:
        build_graph(model, workers=workers, batch=50)
    assert caught.value.worker == worker


def test_profiles_beyond_those_that_are_kept_are_the_same() -> None:
    assert len(models.Profiles(31, 2)) == 2**31
    every = models.Profiles(9, 4)
    assert [next(iter(every)), every[1], every[4**8]] == [(0,) * 9, (1,) + (0,) * 8, (0,) * 8 + (1,)]
    assert [profile for profile, _ in zip(every, range(300), strict=False)] == [every[i] for i in range(300)]


class Moody(World):
    """A model whose answer in state 0 is `later` when it is asked again."""

    def __init__(self, later: Any) -> None:
        super().__init__(1, 2, 0)
        self.answers = iter([[(1.0, 2)], later])

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        if state >= 40:
            return None
        return next(self.answers) if state == 0 and profile == (1,) else [(1.0, state + 1 + profile[0])]


@pytest.mark.parametrize("workers", [1, 0])
@pytest.mark.parametrize(
    ("later", "said"),
    [
        ([(1.0, 3)], r"\(1\.0, 2\) and then \(1\.0, 3\)"),
        ([(0.5, 2), (0.5, 2)], r"\(1\.0, 2\) and then \(0\.5, 2\)"),
        ([(1.0, 2), (0.0, 3)], r"None and then \(0\.0, 3\)"),
        (None, r"\[\(1\.0, 2\)\] and then None"),
    ],
)
def test_a_model_that_answers_differently_is_refused(later: Any, said: str, workers: int) -> None:
    """The model is refused if this process expanded the state first, and if a worker did."""
    model = Moody(later)
    line = f"^transition_probabilities: expected the same answer twice, got {said} in state 0 with profile "
    with pytest.raises(ValueError, match=line + r"\(1,\)$"):
        if workers:
            built(model, workers=workers)
        profiles, whole = models.Profiles(len(model.agents), model.action_space.n), expansion.Expansion(0)
        whole.extend(exploration.expand(model.transition_probabilities, profiles, [0]).result)
        whole.check_repeats(model.transition_probabilities, profiles)


def test_a_model_that_cannot_be_pickled_needs_one_worker() -> None:
    model = Table(1, 1, {})
    model.lock = threading.Lock()
    check_refused(building(model, workers=2), TypeError, "model: expected something that can be pickled, got ")
    build_graph(model, workers=1).close()


class Identity:
    """A state that equals only itself."""


class Fixed:
    """A state that keeps its hash, which differs from process to process."""

    def __init__(self, name: str) -> None:
        self.name, self._hash = name, hash(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and other.name == self.name

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return Fixed, (self.name,)


def twins(start: Any) -> Table:
    return Table(1, 1, {start: {(0,): [(0.01, i) for i in range(100)]}}, start)


class Undefined(World):
    """A slow model whose later states hold a nan, which equals only itself."""

    def __init__(self) -> None:
        super().__init__(1, 12, (0, 0.0))

    def transition_probabilities(self, state: Any, profile: Any) -> Any:
        time.sleep(0.001)
        step = state[0] + 1
        return [(1.0, (step, profile[0] if step == 1 else math.nan))] if step < 4 else None


@pytest.mark.usefixtures("shared_fork_server")
def test_states_that_change_when_they_are_pickled_are_refused() -> None:
    for model, says in (
        (twins(Identity()), "state: expected states that are equal and hash alike after pickling, got "),
        (Undefined(), "after pickling, got (2, nan), whose copy differs"),
    ):
        check_refused(building(model, workers=2, batch=1), TypeError, says)
    build_graph(twins(Fixed("a")), workers=2, batch=1).close()


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that 99 of the 1000 MiB that the process may use are left."""
    monkeypatch.setattr(cgroup, "memory_limit", lambda: cgroup.MemoryLimit(limit=1000 << 20, left=99 << 20))


@pytest.mark.long
def test_too_little_free_memory_ends_the_call(limited: None) -> None:
    chain = Slow(Table(1, 1, {i: {(0,): [(1.0, i + 1)]} for i in range(80)}))  # long enough for a look at the memory
    expected = r"expected 0.1 of the memory limit \(1000 MiB\) to stay free at \d+ states, got 99 MiB free$"
    with pytest.raises(NotEnoughMemory, match=expected):
        build_graph(chain, workers=1)
    for fraction in (0.0, 0.01):
        build_graph(chain, workers=1, min_free_memory_fraction=fraction).close()


def test_what_a_graph_will_need_counts_as_used(limited: None) -> None:
    watch = Watch(0.05, progress=False)
    watch.check_memory(7, 40 << 20)
    with pytest.raises(NotEnoughMemory, match="to stay free after allocating 60 MiB more at 7 states, got 99 MiB"):
        watch.check_memory(7, 60 << 20)


@pytest.mark.parametrize(("states", "says"), [
    ([(i, os.urandom(1 << 20)) for i in range(12)], "after allocating 12 MiB more at 12 states, got 99 MiB free"),
    ([*range(100_000)], "after allocating 13 MiB more at 100000 states, got 99 MiB free"),
])  # fmt: skip
def test_pickled_states_and_the_lists_that_order_them_count_too(states: Any, says: str, limited: None) -> None:
    model = Table(1, 1, {one: {(0,): [(1.0, other)]} for one, other in pairwise(states)}, states[0])
    with pytest.raises(NotEnoughMemory, match=says):
        build_graph(model, workers=1, min_free_memory_fraction=0.09)


def main(examples: int = 1000) -> None:
    patient = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    patient(given(acyclic_models(most=40))(lambda model: check_random(model, workers=1)))()
    print(f"{examples} random models: each graph is what the oracle says")
