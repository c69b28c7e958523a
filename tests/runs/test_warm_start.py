"""Runs that start from the weights of another run, of a checkpoint or of a state_dict."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hunt import HUNT
from refused import check_refused
from seams import undrawn
from whole_runs import MODES, Runs, checkpoint, config_of

import marlcore as mc
from marlcore.record import taken_over

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(total_steps=400)
DQN = mc.DQN(hidden=(16,))
STILL = {"total_steps": 60, "learner": {"warmup": 9_000}}  # too short for any update


def train(folder: Path, algorithm: Any = DQN, init_strict: bool = True, init_from: Any = None, **changes: Any) -> Path:
    options = {"init_from": init_from, "init_strict": init_strict, "progress": False}
    return mc.train(HUNT, algorithm, runs.configured(folder, **changes), **options).run_dir


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with undrawn():
        return train(tmp_path_factory.mktemp("source"))


def network(run_dir: Path, policy: str = "agent_0") -> dict[str, torch.Tensor]:
    return dict(checkpoint(run_dir, policy)["network"])


def equal(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "a run": lambda run: run,
    "its name": str,
    "a checkpoint": lambda run: run / "checkpoints" / "agent_0.pt",
    "a state_dict": network,
    "by policy": lambda run: {"agent_0": run},
    "weights by policy": lambda run: {"agent_0": network(run)},
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_run_starts_from_given_weights(tmp_path: Path, source: Path, kind: str) -> None:
    """Both policies start from the weights, unless one is named."""
    run_dir = train(tmp_path, init_from=SOURCES[kind](source), **STILL)
    assert equal(network(run_dir), network(source))
    is_file = kind not in ("a state_dict", "weights by policy")
    origin = str(source / "checkpoints" / "agent_0.pt") if is_file else "a state_dict"
    assert config_of(run_dir)["init_from"]["agent_0"] == origin
    own = "agent_1" if kind in ("a run", "its name") else "agent_0"
    assert equal(network(run_dir, "agent_1"), network(source, own)) == ("by policy" not in kind)


def test_a_runs_only_policy_starts_all_others(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", policies={"agent_0": "both", "agent_1": "both"}, **STILL)
    run_dir = train(tmp_path, init_from=alone, **STILL)
    assert all(equal(network(run_dir, agent), network(alone, "both")) for agent in ("agent_0", "agent_1"))


@MODES
def test_a_warm_start_has_new_counters_and_optimizers(tmp_path: Path, source: Path, mode: str) -> None:
    run_dir = train(tmp_path, init_from=source, mode=mode)
    state, described = checkpoint(run_dir), config_of(run_dir)
    assert 0 < state["updates"] < 40 and not equal(state["network"], network(source))
    assert {int(own["step"]) for own in state["trainer"]["optimizer"]["state"].values()} == {state["updates"]}
    mc.train(HUNT, DQN, runs.configured(tmp_path, total_steps=450, mode=mode), progress=False, resume=run_dir)
    assert described["init_from"].keys() == {"agent_0", "agent_1"}
    assert config_of(run_dir)["init_from"] == described["init_from"]


def test_weights_that_do_not_fit_are_left_out(tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without `init_strict`, with which they are refused; the log names them."""
    wider = mc.DQN(hidden=(16, 8))
    for algorithm in (wider, mc.IQN(hidden=(16,))):
        check_refused(partial(train, tmp_path, algorithm, init_from=source), ValueError, NETWORK)
    assert not any(tmp_path.iterdir())
    weights = network(train(tmp_path / "warm", wider, init_from=source, init_strict=False, **STILL))
    cold, before = network(train(tmp_path / "cold", wider, **STILL)), network(source)
    fitting = [name for name in weights if name in before and before[name].shape == weights[name].shape]
    assert fitting and len(fitting) < len(weights)
    for name, tensor in weights.items():
        assert torch.equal(tensor, before[name] if name in fitting else cold[name]), name
    (said,) = [text for text in caplog.messages if "init_from: agent_0 starts without " in text]
    assert all(name in said for name in before.keys() - set(fitting))


def test_a_warm_start_takes_the_normalization(tmp_path: Path) -> None:
    normalized = {"obs_norm": "running", "reward_norm": "running", "warmup": 50}
    first = train(tmp_path / "first", learner=normalized)
    still = {**STILL, "learner": {**normalized, "warmup": 9_000}}
    second = train(tmp_path / "second", init_from=first, **still)
    for name in ("norm", "reward_norm"):
        assert equal(checkpoint(first)[name], checkpoint(second)[name])
    for other, setting in (("rewards", "obs_norm"), ("observations", "reward_norm")):
        says = f"got weights for other {other}: only one of the two runs normalizes them; "
        says += "init_strict=False takes the weights that fit"
        settings = {**STILL, "learner": {setting: "running", "warmup": 9_000}}
        check_refused(partial(train, tmp_path / "3", init_from=first, **settings), ValueError, says)


NETWORK = "init_from: expected weights of agent_0's network, got "
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number": ({"init_from": 5}, "init_from: expected a run's directory, a checkpoint, a state_dict, or one of"),
    "nothing": ({"init_from": {}}, "for each policy, got {}"),
    "no file": ({"init_from": "/nowhere/a.pt"}, "init_from: expected a checkpoint, got '/nowhere/a.pt', which does"),
    "no run": ({"init_from": "/"}, "init_from: expected the directory of a run, got '/'"),
    "another policy": (
        {"init_from": {"agent_7": "/"}}, "init_from: expected the policies ['agent_0', 'agent_1'], got 'agent_7'",
    ),
    "other names": ({"init_from": {"w": torch.zeros(2)}, "init_strict": False}, f"{NETWORK}no weights that fit"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_weights_that_cannot_be_taken_are_refused(tmp_path: Path, case: str) -> None:
    asked, says = REFUSED[case]
    check_refused(lambda: train(tmp_path, **asked), (ValueError, TypeError), says)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_a_resumed_run_takes_a_snapshot_without_a_random_state() -> None:
    own, snapshot = {"torch": "own", "trainer": "own", "step": 5}, {"trainer": "kept", "network": {}}
    merged = taken_over(own, snapshot)
    assert merged.items() >= {"torch": "own", "trainer": "kept", "step": 5, "updates": 0}.items()
    assert taken_over({}, snapshot | {"torch": "kept"})["torch"] == "kept"


def test_a_resumed_run_takes_anothers_weights_and_optimizer(tmp_path: Path, source: Path) -> None:
    """It keeps its counts; with weights alone, the optimizer is new."""
    own = train(tmp_path, total_steps=200)
    before, other = checkpoint(own), checkpoint(source)
    config = runs.configured(tmp_path, total_steps=210, learner={"warmup": 9_000})
    mc.train(HUNT, DQN, config, progress=False, resume=own, init_from=source)
    after = checkpoint(own)
    assert equal(after["network"], other["network"]) and not equal(after["network"], before["network"])
    assert 0 < before["updates"] == after["updates"] < other["updates"] and 210 <= after["step"] < 220
    for index, moments in other["trainer"]["optimizer"]["state"].items():
        assert equal(moments, after["trainer"]["optimizer"]["state"][index])
    assert config_of(own)["init_from"]["agent_0"] == str(source / "checkpoints" / "agent_0.pt")
    weights = {name: network(source, name) for name in ("agent_0", "agent_1")}
    config = runs.configured(tmp_path, total_steps=220, learner={"warmup": 9_000})
    mc.train(HUNT, DQN, config, progress=False, resume=own, init_from=weights)
    assert {int(moments["step"]) for moments in checkpoint(own)["trainer"]["optimizer"]["state"].values()} == {0}
