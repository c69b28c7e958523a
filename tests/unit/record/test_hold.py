"""The hold on a policy's checkpoint: once a learner has taken it, no earlier learner replaces the file."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from refused import check_refused

from marlcore.errors import Fenced
from marlcore.record import Hold, files, load_checkpoint, save_checkpoint


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
