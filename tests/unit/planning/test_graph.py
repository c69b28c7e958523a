"""A graph's copies, levels, texts and pictures; test_building.py compares graphs with an oracle."""

import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from world_models import Diamonds, Doors, Slippery, Table

from marlcore import ClosedError
from marlcore.planning import Graph, backward_induction, build_graph

MODELS = {
    "doors": Doors(),
    "slippery": Slippery(),
    "diamonds": Diamonds(),
    "unordered": Diamonds(named=True),
    "terminal": Table(1, 1, {}),
}


@pytest.fixture(params=MODELS)
def graph(request: pytest.FixtureRequest) -> Iterator[Graph]:
    with build_graph(MODELS[request.param]) as one:
        yield one


def test_levels_hold_every_state_once_from_the_ends_on(graph: Graph) -> None:
    assert np.array_equal(np.sort(np.concatenate(graph.levels)), np.arange(len(graph)))
    for number, states in enumerate(graph.levels):
        assert np.array_equal(states, np.flatnonzero(graph.level == number))


def test_a_copy_by_handle_pickle_or_file_is_equal(graph: Graph, tmp_path: Any) -> None:
    graph.save(tmp_path / "graph")
    copies = [Graph.attach(graph.handle), pickle.loads(pickle.dumps(graph)), Graph.load(tmp_path / "graph")]
    for copy in copies:
        with copy:
            assert copy.to_lists() == graph.to_lists()
            assert copy.level.tobytes() == graph.level.tobytes()


def test_probabilities_may_be_left_out_or_shorter() -> None:
    with build_graph(Slippery()) as whole, build_graph(Slippery(), probabilities=False) as bare:
        assert bare.probability is None and bare.nbytes < whole.nbytes
        assert bare.to_lists()[:3] == whole.to_lists()[:3]
        with build_graph(Slippery(), probabilities="float32") as short:
            assert np.array_equal(short.probability, whole.probability.astype(np.float32))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_level_function_may_count_either_way(sign: int) -> None:
    with build_graph(Doors(), level_fct=lambda state: sign * state[0]) as graph:
        assert graph.level.tolist() == [sign * state[0] for state in graph.states]
        steps = [{graph.states[i][0] for i in level.tolist()} for level in graph.levels]
        assert steps == [{4 - i} for i in range(5)]


def test_a_graph_and_policies_show_their_counts() -> None:
    with build_graph(Table(1, 2, {0: {(0,): [(0.5, 1), (0.5, 2)], (1,): [(1.0, 2)]}})) as graph:
        assert re.fullmatch(r"<Graph /dev/shm/\S+ states=3 rows=2 outcomes=3>", repr(graph))
        with backward_induction(graph, {0: [bool, bool]}, dtype="float32") as found:
            assert re.fullmatch(r"<Policies /dev/shm/\S+ states=3 goals=\{0: 2\} dtype=float32>", repr(found))


@pytest.mark.long
def test_a_picture_shows_states_and_successors(tmp_path: Any) -> None:
    """The picture has each state's label, and an arrow to each of its successors."""
    pytest.importorskip("matplotlib")
    with build_graph(Doors()) as graph:
        axes = graph.plot(tmp_path / "graph.png", label=lambda state: f"step {state[0]}").axes[0]
        texts = [text.get_text() for text in axes.texts]
        assert [text for text in texts if text] == [f"step {state[0]}" for state in graph.states]
        assert texts.count("") == sum(len(graph.successors_of(i)) for i in range(len(graph)))
    assert (tmp_path / "graph.png").stat().st_size > 0


def test_a_closed_graph_says_so() -> None:
    graph = build_graph(Doors())
    attached = Graph.attach(graph.handle)
    attached.close()
    with pytest.raises(ClosedError):
        attached.states  # noqa: B018
    graph.close()
