"""The hold on a policy's checkpoint and saved replay: once a learner has taken it, no earlier learner replaces them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refused import check_refused

from marlcore import Field, ReplayBuffer, TransitionSpec
from marlcore.errors import Fenced
from marlcore.record import Hold, files, load_checkpoint, save_checkpoint
from marlcore.run.roles.batches import ReplayBatches


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    first = Hold(tmp_path / "agent_0.pt", "run", 1)
    first.take()
    save_checkpoint(first.checkpoint, {"updates": 1}, first)
    return first


def test_an_earlier_learner_saves_nothing(hold: Hold) -> None:
    later = replace(hold, epoch=2)
    later.take()
    with pytest.raises(Fenced, match="another learner has taken over this policy"):
        save_checkpoint(hold.checkpoint, {"updates": 2}, hold)
    save_checkpoint(hold.checkpoint, {"updates": 3}, later)
    assert load_checkpoint(hold.checkpoint) == {"updates": 3}
    assert sorted(path.name for path in hold.checkpoint.parent.iterdir()) == ["agent_0.holder", "agent_0.pt"]


def before_a_rename(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Calls `action` once, just before the next file is replaced."""
    rename = files.os.replace

    def late(*paths: Any) -> None:
        monkeypatch.setattr(files.os, "replace", rename)
        action()
        rename(*paths)

    monkeypatch.setattr(files.os, "replace", late)


def test_a_save_that_was_checked_too_early_fails(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner stops between the check and the rename; the next one takes the policy over and reads."""
    later = replace(hold, epoch=2)
    before_a_rename(monkeypatch, lambda: (later.take(), later.begin()))
    with pytest.raises(FileNotFoundError):
        save_checkpoint(hold.checkpoint, {"updates": 2}, hold)
    assert load_checkpoint(hold.checkpoint) == {"updates": 1}


def test_a_save_leaves_what_another_learner_is_writing(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that has lost the hold but is still alive removes no file of the next learner."""
    later, earlier = replace(hold, epoch=2), partial(save_checkpoint, hold.checkpoint, {"updates": 2}, hold)
    later.take()
    before_a_rename(monkeypatch, lambda: check_refused(earlier, Fenced, "another learner has taken over this policy"))
    save_checkpoint(hold.checkpoint, {"updates": 3}, later)
    assert load_checkpoint(hold.checkpoint) == {"updates": 3}


def test_a_hold_that_ended_is_nobodys(hold: Hold) -> None:
    unfinished = hold.checkpoint.with_name(".agent_0.pt.1.new")
    unfinished.touch()
    hold.end()
    assert not unfinished.exists()
    with pytest.raises(Fenced):
        save_checkpoint(hold.checkpoint, {"updates": 2}, hold)


def test_a_machine_sees_whether_the_directory_is_that_of_the_run(hold: Hold) -> None:
    assert hold.is_seen() and replace(hold, epoch=7).is_seen()
    assert not replace(hold, run="another").is_seen() and not replace(hold, checkpoint=Path("/no/a.pt")).is_seen()


def save_replay(hold: Hold, rows: int) -> None:
    """Saves a replay with this many rows, as a learner does."""
    with ReplayBuffer.create(TransitionSpec(Field(), Field((), "int64")), 8) as replay, replay.writer() as writer:
        for _ in range(rows):
            writer.add(0.0, 0, 0.0)
        memory = SimpleNamespace(checkpoint=lambda policy: hold.checkpoint, holds={"agent_0": hold})
        learner = SimpleNamespace(_memory=memory, _name="agent_0", _saves=True, _replay=replay, _handle=replay.handle)
        learner._source = SimpleNamespace(state_dict=dict)
        ReplayBatches.save(learner, version=1)


def saved_rows(hold: Hold) -> int:
    with ReplayBuffer.load(hold.checkpoint.with_suffix(".replay")) as saved:
        return len(saved)


@pytest.mark.parametrize("checked", [False, True], ids=["before the check", "after the check"])
def test_an_earlier_learner_replaces_no_saved_replay(
    hold: Hold, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next learner takes the policy over while the earlier one's replay is written, or just before its rename."""
    folder, another, later = hold.checkpoint.parent, hold.checkpoint.with_name("agent_1.pt"), replace(hold, epoch=2)
    save_replay(hold, 1)
    names = sorted(path.name for path in folder.iterdir())

    def take() -> None:
        later.take()
        later.begin()

    if checked:
        before_a_rename(monkeypatch, take)
    else:
        sync = files.os.fsync
        monkeypatch.setattr(
            files.os, "fsync", lambda fd: (monkeypatch.setattr(files.os, "fsync", sync), take(), sync(fd))
        )
    with pytest.raises(FileNotFoundError if checked else Fenced):
        save_replay(hold, 2)
    assert saved_rows(hold) == 1
    assert sorted(path.name for path in folder.iterdir()) == names
    first = replace(later, checkpoint=another)
    first.take()
    before_a_rename(monkeypatch, take)  # which concerns only agent_0
    save_replay(first, 3)
    save_replay(later, 4)
    assert saved_rows(first) == 3 and saved_rows(later) == 4
