"""Files and values that an attacker made: each is refused at once, in one line, before memory is allocated for it."""

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refused import Refused, check_refused, refusals

import marlcore as mc
from marlcore.__main__ import main
from marlcore.checks import brief, printable
from marlcore.compat import cpprb, sorrel
from marlcore.config import read_settings
from marlcore.declared import hints_of
from marlcore.notices import say, shown_with
from marlcore.record import read_metrics
from marlcore.tables import FittedTable

MOST_BYTES = 2**23  # that a refusal may allocate


def nested(depth: int) -> Any:
    """A list of 10^depth values in 10 * depth places."""
    return 0 if depth == 0 else [nested(depth - 1)] * 10


def refuse_cheaply(call: Callable[[], object], says: str) -> None:
    tracemalloc.start()
    try:
        check_refused(call, (ValueError, TypeError, OSError), says)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_short_value_is_quoted_as_it_is() -> None:
    for value in (nested(2)[0], (1,), (), {"a": [1, (2.5, None)], 3: {}}, {1}, True, "it's", b"x", mc.DQN):
        assert brief(value) == repr(value)


class Deleted:
    """Like an array of JAX whose memory is gone."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_without_a_repr_is_quoted_by_its_class() -> None:
    assert brief([Deleted()]).startswith("[<Deleted instance at 0x")


LOOP: list[Any] = []
LOOP.append(LOOP)


def test_a_large_value_is_quoted_in_a_short_line() -> None:
    for value in (nested(200), LOOP, 1 << 10**7, "x" * 10**6, {"a": nested(200)}):
        assert len(brief(value)) <= 200


EVIL, SHOWN = "a\x1b[2J\nb\u202e", "a\\x1b[2J\\nb\\u202e"


def test_control_characters_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(EVIL) == SHOWN and printable("Ärger, 選手") == "Ärger, 選手"
    assert printable(EVIL, but="\n") == SHOWN.replace("\\n", "\n")
    table = FittedTable([EVIL], "agent", [f"info/{EVIL}"], {EVIL: ["1"]})
    assert table.plain == f"{SHOWN}\nagent\tinfo/{SHOWN}\n{SHOWN}\t1\n"
    assert str(mc.EnvironmentFailed(f"{EVIL}: failed")) == f"{SHOWN}: failed".replace("\\n", "\n")
    with shown_with(True):
        say(EVIL)
    assert main(["train", "--env", EVIL]) == 2
    shown = capsys.readouterr().err
    assert f"marlcore: {SHOWN}\n" in shown and "\x1b" not in shown and shown.count("\n") == 2


def no_regular_file(kind: str, path: Path) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path}[kind])
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "settings": read_settings,
    "metrics": read_metrics,
    "episodes": lambda path: mc.ReplayBuffer.from_episodes(path),
    "sorrel": sorrel.Buffer.load,
    "cpprb": lambda path: cpprb.ReplayBuffer(4, {"a": {}}).load_transitions(path),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, reader: str, kind: str) -> None:
    path = no_regular_file(kind, tmp_path / "file")
    says = {"directory": "Is a directory", "loop": "symbolic links"}
    refuse_cheaply(lambda: READERS[reader](path), says.get(kind, "expected a regular file, got a pipe or a"))


ALIASES = "a: &a [0,0,0,0,0,0,0,0,0,0]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
SETTINGS = {
    "aliases": (ALIASES, "expected a value, got an alias"),
    "an alias of itself": ("env: &e [*e]", "expected a value, got an alias"),
    "false": ("false", "settings: expected settings by name, got False"),
    "a number": ("0", "settings: expected settings by name, got 0"),
    "a list": ("[]", "settings: expected settings by name, got []"),
    "many steps": (f"total_steps: 0x{'F' * 20}", f"total_steps: expected an integer from 1 to {2**63 - 1}, got"),
    "a huge number": (f"total_steps: 0x{'F' * 9000}", "got an integer of 36000 bits"),
    "a long file": ("#" * 2**21, "expected a file of at most 1,048,576 bytes, got a longer one"),
    "control characters": ('"\\e[2J\\n\\u202e": 1', r"unknown setting \x1b[2J\n\u202e"),
    "nested": ("[" * 600, "maximum recursion depth"),
    "a key twice": (
        "seed: 1\nlearner: {lr: 1}\nseed: 2",
        "expected each key once, got 'seed' in \"<unicode string>\", line 3",
    ),
    "a flag of YAML 1.1": ("replay: {save: yes}", "replay.save: expected True or False, got 'yes'"),
    "a number of base 60": ("total_steps: 1:30:00", "total_steps: expected an integer of at least 1, got '1:30:00'"),
    "a long name": (f"? {'x' * 10**6}\n: 1", f"unknown setting {'x' * 197}..."),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_hostile_settings_are_refused_in_one_line(tmp_path: Path, case: str) -> None:
    content, says = SETTINGS[case]
    (tmp_path / "s.yaml").write_text(content)
    check_refused(lambda: read_settings(tmp_path / "s.yaml"), ValueError, says)


BIG = "x" * 10**6
KINDS = [np.array([1, 2]), np.zeros(0), b"x", Path("x"), 10**400, BIG, [BIG], {BIG: BIG}, {BIG: 1}]
DOORS: dict[str, Callable[[Any], object]] = {
    "run_dir": mc.evaluate,
    "runs": lambda path: mc.best_run([path]),
    "path": mc.ReplayBuffer.load,
    "resume": lambda path: mc.train("treasure_hunt", "dqn", resume=path),
    "DQN network": lambda path: mc.DQN(network=path or BIG),
}


def test_a_setting_of_another_kind_is_named_in_a_short_line() -> None:
    for label, value in product(hints_of(mc.Config), KINDS):
        try:
            mc.Config().changed({label: value})
        except (ValueError, TypeError) as error:
            said = str(error)
            assert said.startswith((label, "cluster.address")) and len(said) < 800 and "\n" not in said


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("path", [5, "\0", BIG])
def test_what_is_no_path_is_named(door: str, path: Any) -> None:
    with pytest.raises(ValueError, match=f"^{door}: expected ") as raised:
        DOORS[door](path)
    assert len(str(raised.value)) < 400


LAYERS = [(mc.DQN, "hidden"), (mc.R2D2, "units"), (mc.QMIX, "mixing_units"), (mc.IQN, "n_cos"), (mc.PPO, "channels")]


def huge(algorithm: Any, name: str) -> Refused:
    value = (10**9,) if isinstance(getattr(algorithm(), name), tuple) else 10**9
    return partial(algorithm, **{name: value}), f"{name}: expected an integer from 1 to 65536, got 1000000000"


test_layers_of_a_billion_units_are_refused = refusals({str(layer): huge(*layer) for layer in LAYERS})


GOOD = {"obs": np.zeros((3, 2), np.float32), "action": np.zeros(3, np.int64), "reward": np.zeros(3)}
GOOD["terminated"] = np.eye(3)[2] > 0


def npy(array: Any, **changes: Any) -> bytes:
    """A .npy file whose header claims something else."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(np.asarray(array)) | changes
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + np.asarray(array).tobytes()


def npz(*members: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in members or [(f"{name}.npy", npy(array)) for name, array in GOOD.items()]:
            archive.writestr(name, content)
    return file.getvalue()


def changed(data: bytes, at: bytes, offset: int, value: int) -> bytes:
    """The bytes with one of them changed, counted from the last place of a signature."""
    place = data.rindex(at) + offset
    return data[:place] + bytes([value]) + data[place + 1 :]


DEFLATED, CENTRAL = npz(how=zipfile.ZIP_DEFLATED), b"PK\1\2"
BOMB = npz(("obs.npy", npy(np.zeros(0), shape=(2**26,))), how=zipfile.ZIP_DEFLATED)
BOMB = changed(BOMB, CENTRAL, 27, 0x20)  # the size: that of the header and 2^29 bytes
NPZ = {
    "a billion claimed": npz(("obs.npy", npy(np.zeros(3), shape=(10**12,)))),
    "a bomb": BOMB,
    "a bomb that hides its ratio": changed(BOMB, CENTRAL, 23, 0x20),  # as if it were 2^29 bytes in the archive, too
    "zlib": DEFLATED[:60] + b"\xff" * 3 + DEFLATED[63:],
    "encrypted": changed(npz(), CENTRAL, 8, 1),
    "a directory": npz(("obs/", b""), ("reward.npy", npy(np.zeros(3)))),
    "an offset before the file": changed(npz(), b"PK\5\6", 16, 255),
    "no array": npz(("obs.txt", b"text")),
    "cut": npz()[:-200],
    "cut inside": npz(("obs.npy", npy(np.zeros(3))[:-8])),
    "text": b"states",
    "empty": b"",
    "one array": npy(np.zeros(3)),
    "objects": npz(("obs.npy", npy(np.zeros(3), descr="|O"))),
    "texts": npz(("obs.npy", npy(np.array(["a"])))),
    "twice": changed(npz(("obs.npy", npy(np.zeros(3))), ("obs.npx", npy(np.zeros(3)))), b"obs.npx", 6, ord("y")),
    "a header of code": npz(("obs.npy", npy(np.zeros(3)).replace(b"'descr'", b"exit(1)"))),
    "another compression": changed(npz(), CENTRAL, 10, 99),
    "negative": npz(("obs.npy", npy(np.zeros(6), shape=(-2, -3)))),
    "missing members": npz(("obs.npy", npy(np.zeros(3)))),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("reader", ["episodes", "sorrel", "cpprb"])
@pytest.mark.parametrize("case", NPZ)
def test_a_broken_npz_is_refused_cheaply(tmp_path: Path, reader: str, case: str) -> None:
    (tmp_path / "data.npz").write_bytes(NPZ[case])
    says = "expected each name once" if case == "twice" else "expected"
    refuse_cheaply(lambda: READERS[reader](tmp_path / "data.npz"), says)


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_whole_npz_is_read(tmp_path: Path, how: int) -> None:
    (tmp_path / "data.npz").write_bytes(npz(how=how))
    with mc.ReplayBuffer.from_episodes(tmp_path / "data.npz") as replay:
        assert len(replay) == 3


ODD = {
    "a scalar": {"states": np.zeros(())},
    "several counts": {"n_frames": np.zeros(3)},
    "other lengths": {"actions": np.zeros(7)},
    "a billion frames": {"n_frames": np.array(10**9)},
    "no rows": {"states": np.zeros((0, 2))},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_shapes_of_a_saved_buffer_are_refused(tmp_path: Path, case: str) -> None:
    whole = {"states": np.zeros((5, 2)), "actions": np.arange(5), "rewards": np.zeros(5), "dones": np.zeros(5)}
    np.savez(tmp_path / "data.npz", **{**whole, "n_frames": 1, "idx": 0, **ODD[case]})
    refuse_cheaply(lambda: sorrel.Buffer.load(tmp_path / "data.npz"), "expected")
