"""The examples of docs/planning.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "planning.md"


def test_the_documents_examples_run(capsys: Any) -> None:
    """The second one continues the first one, inside its block."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    plan = next(block for block in blocks if "class Corridor" in block)
    assist = next(block for block in blocks if "robot_induction" in block)
    names: dict[str, Any] = {"assist": assist}
    exec(plan.replace("    print(", "    exec(assist)\n    print("), names)
    states, value, *policy = capsys.readouterr().out.replace("[", "").replace("]", "").split()
    assert int(states) == len(names["graph"].states) > 50
    assert 0 < float(value) < 1 and abs(sum(map(float, policy)) - 1) < 1e-6
    robot = names["robot"]
    assert robot.policy.shape == (int(states), 3) and robot.attainable[0].max() > float(value)
