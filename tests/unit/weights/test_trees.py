"""Mappings of arrays instead of a module: published arrays arrive, in place, in any order and nesting."""

import subprocess
import sys
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from refused import Refused, check_refused, refusals

from marlcore import LayoutMismatch, ParameterStore


class Layer(NamedTuple):
    weight: Any
    bias: Any


RANDOM = np.random.default_rng(0)
DTYPES = ["float16", "float32", "float64", "complex64", "int8", "uint16", "int64", "bool"]
TREES: dict[str, Any] = {
    "flat": {"weight": RANDOM.random((3, 4), np.float32), "bias": RANDOM.random(4)},
    "nested": {"a": {"b": {"c": RANDOM.random(3)}}, "d": {1: RANDOM.random(2), "e": RANDOM.random(1)}},
    "lists and tuples": {"layers": [(RANDOM.random((2, 3)), RANDOM.random(3)), Layer(RANDOM.random(3), None)], "n": ()},
    "an array": RANDOM.random((3, 2)),
    "a list": [RANDOM.random(3), RANDOM.random(2)],
    "scalars and nothing": {"step": np.array(3), "empty": np.zeros((0, 3), np.float32), "none": None, "no": {}},
    "dtypes": {dtype: RANDOM.integers(0, 2, 5).astype(dtype) for dtype in DTYPES},
    "strides": {"transposed": RANDOM.random((3, 4)).T, "stepped": RANDOM.random(8)[::2]},
}


def flat(tree: Any) -> dict[str, Any]:
    """Returns the arrays of a tree by their paths, as an oracle."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, (list, tuple)) else None
    if pairs is None:
        return {} if tree is None else {"": tree}
    return {f"{key}.{name}".rstrip("."): leaf for key, part in pairs for name, leaf in flat(part).items()}


def changed(tree: Any, change: Any) -> Any:
    """Returns a tree of the same form with changed arrays."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: changed(part, change) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [changed(part, change) for part in tree]
        return type(tree)(*parts) if isinstance(tree, Layer) else type(tree)(parts)
    return change(tree)


def assert_equal(got: Any, expected: Any) -> None:
    assert flat(got).keys() == flat(expected).keys()
    for name, array in flat(expected).items():
        assert flat(got)[name].dtype == array.dtype
        np.testing.assert_array_equal(flat(got)[name], array, name)


def read_only(array: Any) -> Any:
    """Returns an array like JAX's: immutable, and not in C order."""
    frozen = np.array(array, order="F")
    frozen.flags.writeable = False
    return frozen


@pytest.mark.parametrize("name", TREES)
def test_what_is_published_is_what_is_pulled(name: str) -> None:
    tree, local = TREES[name], changed(TREES[name], np.zeros_like)
    arrays = list(flat(local).values())
    with (
        ParameterStore.create(tree, extras={"epsilon": ()}) as store,
        store.publisher(tree) as publisher,
        ParameterStore.attach(store.handle) as attached,
    ):
        subscriber = attached.subscriber(local)
        assert publisher.publish(epsilon=0.5) == 1 and subscriber.pull()
        assert_equal(local, tree)
        assert [*map(id, flat(local).values())] == [*map(id, arrays)], "filled in place"
        new = changed(tree, lambda array: read_only(np.ones_like(array)))
        assert publisher.publish(new, epsilon=0.25) == 2 and subscriber.pull()
        assert_equal(local, new)
        with subscriber.in_place() as view:
            assert_equal(view.tensors, new)
            assert view.extras == {"epsilon": 0.25} == subscriber.extras
            assert not any(array.flags.writeable for array in flat(view.tensors).values())
        assert publisher.publish() == 3 and subscriber.pull()
        assert_equal(local, tree)


def test_names_count_and_not_their_order() -> None:
    """jax.tree.map returns dicts in the order of their keys."""
    tree = {"weight": np.ones(3), "bias": np.full(2, 2.0)}
    local = OrderedDict(bias=np.zeros(2), weight=np.zeros(3))
    with ParameterStore.create(tree) as store, store.publisher(dict(reversed(tree.items()))) as publisher:
        subscriber = store.subscriber(local)
        publisher.publish()
        assert subscriber.pull()
        assert_equal(dict(local), tree)


def test_arrays_may_be_replaced_in_both_mappings() -> None:
    tree, local = {"weight": np.ones(3)}, {"weight": np.zeros(3)}
    with ParameterStore.create(tree) as store, store.publisher(tree) as publisher:
        subscriber = store.subscriber(local)
        tree["weight"], local["weight"] = np.full(3, 7.0), np.zeros(3)
        publisher.publish()
        assert subscriber.pull() and local["weight"].tolist() == [7, 7, 7]
        local["weight"] = np.zeros(4)
        publisher.publish()
        for _ in range(2):
            check_refused(subscriber.pull, LayoutMismatch, "weights weight: expected float64 (3,), got float64 (4,)")
        assert subscriber.version == 1 and not local["weight"].any()


def test_without_a_model_two_rows_take_turns() -> None:
    tree, seen = {"a": {"w": np.zeros((2, 3), np.float32)}, "b": np.zeros(2)}, []
    with ParameterStore.create(tree, extras={"epsilon": ()}) as store, store.publisher(tree) as publisher:
        subscriber = store.subscriber()
        for version in (1, 2, 3):
            for array in flat(tree).values():
                array += 1
            publisher.publish(epsilon=version / 2)
            assert subscriber.pull() and subscriber.extras == {"epsilon": version / 2}
            seen.append(subscriber.weights)
            assert_equal(seen[-1], flat(tree))
            assert not any(array.flags.writeable for array in seen[-1].values())
            with subscriber.in_place() as view:
                assert_equal(view.tensors, flat(tree))
        assert (seen[1]["b"] == 2).all(), "it stays until the next pull but one"
        assert seen[2] is seen[0]


def test_a_changed_mapping_is_not_viewed() -> None:
    tree, local = {"weight": np.ones(3)}, {"weight": np.zeros(3)}
    with ParameterStore.create(tree) as store, store.publisher(tree) as publisher:
        subscriber = store.subscriber(local)
        publisher.publish()
        local["more"] = np.zeros(1)
        with pytest.raises(LayoutMismatch, match=r"^weights more: expected no such array"), subscriber.in_place():
            pass


def test_a_mapping_and_a_module_of_the_same_names_meet() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 2))
    local = {"0": {"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(2, np.float32)}}
    with ParameterStore.create(module) as store:
        subscriber = store.subscriber(local)
        with store.publisher(module) as publisher:
            publisher.publish()
        assert subscriber.pull() and np.array_equal(local["0"]["bias"], module[0].bias.detach())
        with store.publisher({name: tensor.detach() for name, tensor in module.named_parameters()}) as publisher:
            publisher.publish(weights=local)
        assert store.subscriber(torch.nn.Sequential(torch.nn.Linear(3, 2))).pull()


TREE = {"a": {"w": np.zeros((2, 3), np.float32)}, "b": np.zeros(2)}
W = np.zeros((2, 3), np.float32)


def subscribe(tree: Any) -> None:
    with ParameterStore.create(TREE) as store:
        store.subscriber(tree)


def publish(weights: Any) -> None:
    with ParameterStore.create(TREE) as store, store.publisher(TREE) as publisher:
        try:
            publisher.publish(weights=weights)
        finally:
            assert store.version == 0 and publisher.publish() == 1


def subscribe_to_unknown_dtypes() -> None:
    with ParameterStore.create(TREE) as store:
        description = {**store.description, "tensors": [["w", [2], "int256"]]}
    with ParameterStore.create_mirror(description) as mirror:
        mirror.subscriber()


MAPPING = "expected a torch module or a mapping of arrays, got"
NUMBERS = "expected an array of numbers"
REFUSED: list[Refused] = [
    *((partial(call, bad), error, says) for call, bad, error, says in (
        (ParameterStore.create, 3, TypeError, f"model: {MAPPING} 3"),
        (ParameterStore.create, np.array([{}]), TypeError, f"weights: {NUMBERS}"),
        (ParameterStore.create, {"a": {"w": "text"}}, TypeError, f"weights a.w: {NUMBERS}, got 'text'"),
        (ParameterStore.create, {"a": [np.array([{}])]}, TypeError, f"weights a.0: {NUMBERS}"),
        (ParameterStore.create, {"a": np.zeros(2, "f4,f4")}, TypeError, f"weights a: {NUMBERS}"),
        (ParameterStore.create, {"a": np.zeros(2, ">f4")}, TypeError,
            "weights a: expected native byte order, got >f4"),
        (ParameterStore.create, {"a.b": W, "a": {"b": W}}, ValueError,
            "weights a.b: expected one array of this name"),
        (subscribe, {"b": np.zeros(2)}, LayoutMismatch, "weights a.w: expected float32 (2, 3), got nothing"),
        (subscribe, {**TREE, "c": W}, LayoutMismatch, "weights c: expected no such array, got float32"),
        (subscribe, {**TREE, "b": W[0, :2]}, LayoutMismatch, "weights b: expected float64 (2,), got float32 (2,)"),
        (subscribe, {**TREE, "b": np.zeros(3)}, LayoutMismatch, "weights b: expected float64 (2,), got float64 (3,)"),
        (subscribe, {**TREE, "b": read_only(np.zeros(2))}, ValueError, "weights b: expected a writable array, got a"),
        (subscribe, {**TREE, "a": {"w": np.zeros((2, 3), ">f4")}}, TypeError,
            "weights a.w: expected native byte order, got >f4"),
        (subscribe, {**TREE, "b": np.float64(1)}, TypeError,
            "weights b: expected a NumPy array to fill, got float64"),
        (publish, {"a": {"w": W}}, LayoutMismatch, "weights b: expected float64 (2,), got nothing"),
        (publish, {"a": {"w": W}, "b": [1.0, 2.0]}, LayoutMismatch,
            "weights b: expected float64 (2,), got a list or mapping"),
        (publish, None, TypeError, "weights: expected a mapping of arrays, got None"),
        (publish, W, LayoutMismatch, "weights a.w: expected float32 (2, 3), got nothing"),
        (publish, {"a": {"w": W}, "b": "x"}, TypeError, f"weights b: {NUMBERS}"),
    )),
    (subscribe_to_unknown_dtypes, TypeError, "weights w: expected a dtype of NumPy, got int256"),
    (partial(ParameterStore.create, TREE, extras={"weights": ()}), "extras: expected names other than"),
]  # fmt: skip
test_refuses = refusals(REFUSED)


def test_mappings_need_no_torch() -> None:
    code = """
import sys, numpy as np, marlcore as mc
tree = {"w": np.ones(3)}
with mc.ParameterStore.create(tree) as store, store.publisher(tree) as publisher:
    publisher.publish()
    assert store.subscriber({"w": np.zeros(3)}).pull()
print("torch" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_an_object_is_given_whole_versions() -> None:
    """After each pull, the object's `load` gets all arrays by name."""
    given: list[dict[str, list[int]]] = []
    tree = {"layers": [np.arange(3), np.arange(2)]}
    local: Any = SimpleNamespace(
        load=lambda arrays: given.append({name: rows.tolist() for name, rows in arrays.items()})
    )
    with ParameterStore.create(tree) as store, store.publisher(tree) as publisher:
        subscriber = store.subscriber(local)
        for last in (1, 7):
            tree["layers"][1][:] = last
            publisher.publish()
            assert subscriber.pull() and not subscriber.pull()
        store.unlink()
    assert given == [{"layers.0": [0, 1, 2], "layers.1": [last, last]} for last in (1, 7)]
    check_refused(lambda: ParameterStore.create(local), TypeError, "model: expected a torch module or a mapping")
