"""Batches and specs are pytrees of JAX as soon as a program has imported it, before or after marlcore."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

PROGRAM = """
import sys
{first}
import marlcore as mc
from marlcore import transitions
{then}
import numpy as np

spec = mc.TransitionSpec({{"a": {{"b": mc.Field((2,))}}}}, mc.Field((), "int32"))
with mc.ReplayBuffer.create(spec, 16) as replay:
    with replay.writer() as writer:
        for number in range(8):
            writer.add({{"a": {{"b": [number, -number]}}}}, number, 0.5, terminated=True)
    batch = replay.sampler(4, seed=0).sample()
    {act}
"""
FAKE = """
from types import SimpleNamespace
kinds = {}
jax = sys.modules["jax"] = SimpleNamespace(tree_util=SimpleNamespace(
    register_pytree_node=lambda kind, flatten, unflatten: kinds.update({kind.__name__: (flatten, unflatten)})))
"""
LOOK = """
    assert kinds.keys() >= {"Batch", "Field", "TransitionSpec"}, kinds
    flatten, unflatten = kinds["Batch"]
    values, names = flatten(batch)
    again = unflatten(names, [value for value in values])
    assert again.obs["a"]["b"] is batch.obs["a"]["b"] and again.mask is None and type(again) is mc.Batch
    flatten, unflatten = kinds["TransitionSpec"]
    values, rest = flatten(spec)
    assert values == () and unflatten(rest, ()) == spec and hash(rest) == hash(spec)
"""
REAL = """
    import jax
    import jax.numpy as jnp

    doubled = jax.tree.map(lambda array: 2 * array, batch)
    assert type(doubled) is mc.Batch and (doubled.obs["a"]["b"] == 2 * batch.obs["a"]["b"]).all()
    total = jax.jit(lambda spec, batch: batch.obs["a"]["b"].sum() + len(spec.obs))(spec, batch)
    assert total == 1 + batch.obs["a"]["b"].sum()
    assert len(jax.tree.leaves((spec, mc.Field((3,))))) == 0
    grad = jax.grad(lambda w: (w * jnp.asarray(batch.obs["a"]["b"])).sum())(jnp.ones(2))
    assert grad.shape == (2,)
    with replay.writer() as writer:
        writer.policy_version = jnp.int32(5)
        ticket = writer.add({"a": {"b": jnp.array([2, 3], jnp.bfloat16)}}, 8, 0.5, terminated=True)
        assert replay.read([ticket]).obs["a"]["b"].tolist() == [[2, 3]] and writer.policy_version == 5
        gone = jnp.ones(2)
        gone.delete()
        try:
            writer.add({"a": {"b": gone}}, 8, 0.5)
        except ValueError as error:
            assert str(error).startswith("obs['a']['b']: expected float32 (2,), got <"), error
        assert replay.inserted == 9
"""


def run(**parts: str) -> None:
    parts = {"first": "", "then": "", **parts}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(**parts)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("when", ["first", "then"])
def test_classes_are_registered_with_a_jax_imported_before_or_after(when: str) -> None:
    run(**{when: FAKE, "act": LOOK.strip()})


@pytest.mark.long
@pytest.mark.parametrize("when", ["first", "then"])
def test_jax_works_with_batches_specs_and_writers(when: str) -> None:
    run(**{when: "import jax", "act": REAL.strip()})


def test_a_jax_that_is_being_imported_is_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    from marlcore import pytrees

    registered: list[Any] = []
    monkeypatch.setattr(pytrees, "waiting", [(int, None, None)])
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    pytrees.register()
    assert len(pytrees.waiting) == 1
    node = SimpleNamespace(register_pytree_node=lambda *entry: registered.append(entry))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(tree_util=node))
    pytrees.register()
    assert registered == [(int, None, None)] and not pytrees.waiting
