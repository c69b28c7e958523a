"""docs/seeds.md names tests and files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_names_tests_and_files_that_exist() -> None:
    text = (ROOT / "docs" / "seeds.md").read_text()
    defined = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(names := set(re.findall(r"`(test_\w+)`", text))) > 10
    assert names <= defined
    assert all((ROOT / path).exists() for path in re.findall(r"`([\w/]+/[\w/]+\.py)`", text))
