"""The description in a segment's header: with any number in it, attaching works or raises one clear error."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seams import patch

import marlcore as mc
from marlcore.cluster import Leases
from marlcore.memory import header
from marlcore.processes import Control

SPEC = mc.TransitionSpec({"x": mc.Field((3,))}, mc.Field((), "int16"), {"h": mc.Field((5,), every=4)})
NUMBERS: list[Any] = [-1, True, 1.5, 2**63, 2**64, 2**200, -(2**200), float("inf"), float("nan")]


def made(kind: str, path: Path) -> Any:
    if kind == "replay":
        return mc.ReplayBuffer.create(SPEC, 96, 2, limiter=mc.RateLimiter(1.0, 1, 8.0), path=path)
    if kind == "durable":
        return mc.ReplayBuffer.create(SPEC, 96, 2, path=path, durable=mc.Durable(every_s=60))
    if kind == "queue":
        return mc.TrajectoryQueue.create(SPEC, 96, 2, path=path)
    if kind == "store":
        return mc.ParameterStore.create(
            {"weight": np.zeros((3, 2), np.float32)}, extras={"epsilon": (2,)}, begins_after=4, path=path
        )
    return Control.create(["actor-0"], ["left"]) if kind == "control" else Leases.create(3)


def numbers_in(plain: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(plain, (dict, list)):
        for key, one in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from numbers_in(one, (*keys, key))
    elif isinstance(plain, (int, float)):
        yield keys


@pytest.fixture(autouse=True)
def any_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "transitions", check_keeps=lambda target: None)


@pytest.mark.parametrize("kind", ["replay", "durable", "queue", "store", "control", "leases"])
def test_a_number_of_a_description_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path / "segment") as shared:
        description, body = shared._segment.description, bytes(shared._segment.body)
    for keys in numbers_in(description):
        for number in NUMBERS:
            changed = place = copy.deepcopy(description)
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = number
            file = tmp_path / "changed"
            file.write_bytes(header.Header.build(1, json.loads(json.dumps(changed)), len(body)).raw + body)
            os.chmod(file, 0o600)
            try:
                type(shared).attach(file).close()
            except mc.SegmentCorrupt as error:
                assert "\n" not in str(error)
