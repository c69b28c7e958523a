"""Every file that a run writes and reads back is verified: damage is refused by name, or changes nothing."""

import io
import logging
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hunt import HUNT
from refused import check_refused
from whole_runs import Runs

import marlcore as mc
from marlcore import record
from marlcore.config import AssignedPolicy
from marlcore.evaluation import SavedRun, save_policies
from marlcore.meta import PSROResult
from marlcore.meta.result import read_into
from marlcore.processes import Metric
from marlcore.record import best_run, read_metrics, sinks
from marlcore.record.sinks.wandb import _run_id
from marlcore.run.memory import OwnerOf
from marlcore.spaces import Spaces

SPACES = Spaces(gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2))
NEVER_READ = (".lock", "logs", "tensorboard", "curves.png", "payoff.png")


def plain(value: Any) -> Any:
    """Tensors as lists, so that states compare."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {name: plain(part) for name, part in value.items()} if isinstance(value, dict) else repr(value)


def replay_of(path: Path) -> bytes:
    path.chmod(0o600)
    with mc.ReplayBuffer.load(path) as replay:
        return replay._segment.body.tobytes()


def policies_of(path: Path) -> Any:
    run = SavedRun.of(path.parents[1])
    return run.policies, run.config, run.env_fn is None


READERS: dict[str, Callable[[Path], Any]] = {
    "config.json": lambda path: record.read_config(path.parent),
    "checkpoints/run.json": lambda path: {**record.read_progress(path.parents[1]), "metrics": None},
    "checkpoints/run.pickle": policies_of,
    "checkpoints/policies.json": lambda path: record.described_policies(path.parents[1]),
    "checkpoints/*.replay": replay_of,
    "checkpoints/*.pt": lambda path: plain(record.load_checkpoint(path)),
    "metrics.csv": lambda path: list(map(repr, read_metrics(path))),
    "payoff.json": record.read_json,
    "wandb/run-id": _run_id,
}


def files_of(run: Path) -> list[tuple[Path, Callable[[Path], Any]]]:
    """The files of a run, each with its reader; fails for a file that has no reader and is not in NEVER_READ."""
    known = {path: read for pattern, read in READERS.items() for path in run.glob(pattern)}
    for path in run.rglob("*"):
        assert path.is_dir() or path in known or path.relative_to(run).parts[0] in NEVER_READ, path
    return sorted(known.items())


def make_run(path: Path) -> Path:
    with record.RunDirectory.create(path, {"seed": 1, "learner": {"lr": 0.001}}) as run:
        for step in range(20):
            run.csv.record(Metric(step / 7, step, "agent_0", "loss", 1 / (step + 1)))
        run.save_progress({"time_s": 1.5, "steps": {"actor-0": 1234}})
        run.keep()
    policies = tuple(AssignedPolicy(name, (name,), SPACES, mc.DQN()) for name in ("agent_0", "agent_1"))
    save_policies(path, gymnasium.spaces.Discrete(2).sample, policies, mc.Config())
    for i, policy in enumerate(policies):
        for which in ("last", "best", "opponent-3"):
            state = {"acting": {"weight": torch.arange(50) * i}, "updates": 7}
            record.save_checkpoint(record.checkpoint_path(path, policy.name, which), state)
        with mc.ReplayBuffer.create(mc.DQN().transition(SPACES), 16) as replay:
            replay.save(run.replay_path(policy.name), OwnerOf(policy.name))
    history = [{"step": 5, "win_rates": {"anchor:weak": 0.25}}]
    record.write_json(path / "payoff.json", {"opponents": {}, "history": history})
    (path / "wandb").mkdir()
    _run_id(path / "wandb" / "run-id")
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("tiny") / "run")


def is_named(path: Path, read: Callable[[Path], Any], content: Any, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether one line of an error or a warning names a damaged file; otherwise the reader must return the content."""
    caplog.clear()
    record.files._warn_once.cache_clear()
    try:
        value = read(path)
    except (ValueError, mc.MarlcoreError) as error:
        assert path.name in str(error) and "\n" not in str(error)
        return True
    warnings = [record.getMessage() for record in caplog.records if "changed or damaged" in record.getMessage()]
    assert path.name == "config.json" or not warnings  # only this one may be edited
    assert warnings or value == content, path
    return bool(warnings) and str(path) in warnings[0]


def named_flips(run: Path, count: int, caplog: pytest.LogCaptureFixture) -> int:
    """Flips `count` bits in the files in turn, and returns how many are named; the others must change no content."""
    caplog.set_level(logging.WARNING)
    chance, named = random.Random(0), 0
    readers = files_of(run)
    contents = {path: read(path) for path, read in readers}
    for path, read in islice(cycle(readers), count):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        named += is_named(path, read, contents[path], caplog)
        path.write_bytes(whole)
        assert read(path) == contents[path]
    return named


def test_no_flipped_bit_changes_what_is_loaded(tiny, caplog):
    assert named_flips(tiny, 65, caplog) > 50


@pytest.mark.long
@pytest.mark.usefixtures("undrawn", "shared_fork_server")
def test_no_flipped_bit_of_a_run_changes_what_is_loaded(tmp_path, caplog):
    kept = {"replay": {"capacity": 2000, "save": True}, "evaluation": {"interval": 200, "episodes": 1}}
    Runs(total_steps=600, self_play=mc.SelfPlayConfig(), **kept).train(tmp_path, HUNT)
    assert named_flips(tmp_path / "run", 1000, caplog) > 500


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_file_cut_short_is_refused(tiny, tmp_path, caplog, left):
    run = Path(shutil.copytree(tiny, tmp_path / "run"))
    for path, read in files_of(run):
        content, whole = read(path), path.read_bytes()
        os.truncate(path, int(len(whole) * left))
        is_named(path, read, content, caplog)
        path.write_bytes(whole)


def test_no_pipe_is_waited_for(tiny, tmp_path):
    for path, read in files_of(Path(shutil.copytree(tiny, tmp_path / "run"))):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises((ValueError, mc.MarlcoreError), match="regular file"):
            read(path)
    with pytest.raises(ValueError, match=r"metrics.csv.: expected a regular file"):
        sinks.CsvSink(tmp_path / "run" / "metrics.csv", "r+")


def test_a_hole_of_terabytes_is_refused_unread(tiny, tmp_path):
    """A sparse file, once without a seal and once with the seal of the small file at its end."""
    for path, read in files_of(Path(shutil.copytree(tiny, tmp_path / "run"))):
        whole = path.read_bytes() if path.suffix != ".replay" else b""  # whose length its description has
        for kept in (b"", whole[-1000:]):
            with path.open("wb") as file:
                file.truncate(2**42)
                file.seek(0, os.SEEK_END)
                file.write(kept)
            with pytest.raises((ValueError, mc.MarlcoreError), match=path.name):
                read(path)
        path.write_bytes(whole)


TYPES = {
    "config.json": {"learners": 5, "learners.a": {"learners": {"a": 1}}, "total_steps": "x", "init_from": []},
    "policies.json": {"policies": 5, "name": {"policies": [{}]}},
    "run.json": {"metrics": 5},
    "psro.json": {"payoffs": [["x"]], "gains": 10**400},
    "agent_0.pt": {"updates": "x", "network": 5},
}


@pytest.mark.parametrize("name", TYPES)
def test_a_sealed_field_of_another_type_is_named(tiny, tmp_path, name):
    run = Path(shutil.copytree(tiny, tmp_path / "run"))
    policies, config, _ = policies_of(run / "checkpoints" / "run.pickle")
    record.write_json(run / "psro.json", {"mixture": [1], "gains": [], "payoffs": [[0]], "half_widths": [[0]]})
    described = record.describe("env", policies, config)
    record.write_json(run / "config.json", described)
    (path,) = run.rglob(name)
    whole = record.read_json(path) if path.suffix == ".json" else record.load_checkpoint(path)
    for field, value in TYPES[name].items():
        changed = {**whole, **(value if isinstance(value, dict) else {field: value})}
        (record.write_json if path.suffix == ".json" else record.save_checkpoint)(path, changed)
        with pytest.raises(ValueError, match=rf"^[^\n]*{name}.*{field}[^\n]*$"):
            for read in (
                lambda: best_run([run], "loss"),
                lambda: read_into(PSROResult(run_dir=run)),
                lambda: record.initial_states(path if path.suffix == ".pt" else run, ["agent_0"]),
                lambda: record.check_resumed(run, described, policies),
            ):
                read()


@pytest.mark.parametrize(("this", "other"), [("agent_0", "agent_1"), ("agent_0", "agent_0.best")])
def test_a_checkpoint_in_place_of_another_is_refused(tiny, tmp_path, this, other):
    path = shutil.copy(tiny / "checkpoints" / f"{other}.pt", tmp_path / f"{this}.pt")
    with pytest.raises(ValueError, match=rf"{path}' \(.*: expected {this}.pt, got a copy of {other}.pt\)$"):
        record.load_checkpoint(Path(path))
    assert record.load_checkpoint(Path(path), own_name=False)["updates"] == 7  # as an anchor


def test_a_replay_in_place_of_another_policys_is_refused(tiny):
    path = tiny / "checkpoints" / "agent_1.replay"
    with mc.ReplayBuffer.load(path) as replay, pytest.raises(ValueError, match=f"replay of agent_0, got '{path}'"):
        OwnerOf("agent_0").check(replay, path)


def test_a_checkpoint_of_arrays_is_one_of_torch(tmp_path):
    """Files written with and without torch are read with and without it; other calls in a pickle are refused."""
    path = tmp_path / "a.pt"
    dtypes = "float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"
    arrays = {dtype: np.arange(6).reshape(1, 3, 2).astype(dtype) for dtype in dtypes}
    arrays |= {"scalar": np.array(0.5), "empty": np.zeros((0, 3))}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    counts = {"updates": 2**40, "step": 300, "return": -1.5}
    for arrays_first in (True, False):
        state = {"acting": arrays if arrays_first else tensors, **counts}
        record.save_checkpoint(path, state, arrays=arrays_first)
        by_torch = [torch.load(path, **how) for how in ({}, {"weights_only": False}, {"mmap": True})]
        for read in (*by_torch, record.load_checkpoint(path), record.load_checkpoint(path, arrays=True)):
            acting = read.pop("acting")
            assert read == counts and [*acting] == [*arrays]
            for name, array in arrays.items():
                np.testing.assert_array_equal(acting[name], array, strict=not torch.is_tensor(acting[name]))
    refused = {
        "expected tensors on the CPU, got __builtin__.print": print,
        "expected contiguous tensors": torch.zeros(2, 3).T,
    }
    for says, value in refused.items():
        torch.save({"acting": {"a": value}}, data := io.BytesIO())
        record.files.write_sealed(path, data.getvalue())
        check_refused(lambda: record.load_checkpoint(path, arrays=True), ValueError, says)


def test_an_edited_configuration_is_taken_and_said(tiny, tmp_path, caplog):
    record.files._warn_once.cache_clear()
    path = Path(shutil.copy(tiny / "config.json", tmp_path))
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    assert record.read_config(tmp_path) == {"seed": 2, "learner": {"lr": 0.001}}
    assert [record.getMessage() for record in caplog.records] == [
        f"'{path}': expected the file as the run wrote it, got a changed or damaged one; it is used all the same"
    ]


def test_an_unsealed_older_or_packed_checkpoint_is_refused(tmp_path):
    """Reading torch's older format could execute code, in spite of `weights_only` (CVE-2025-32434)."""
    path, older, packed = tmp_path / "a.pt", io.BytesIO(), io.BytesIO()
    torch.save({"updates": torch.zeros(2**20)}, path)
    torch.save({"updates": 3}, older, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))
    says = "expected the file as the run wrote it, got a changed or damaged one"
    check_refused(lambda: record.load_checkpoint(path), ValueError, says)
    for data, says in {older: "(expected a zip)", packed: "(expected a zip without compression)"}.items():
        record.files.write_sealed(path, data.getvalue())
        check_refused(lambda: record.load_checkpoint(path), ValueError, f"a.pt' {says}")
