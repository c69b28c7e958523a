"""The documentation's site, and the programs that its pages show."""

import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, programs_of

import marlcore as mc

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import reference  # noqa: E402

WRITTEN = DOCS / "reference"  # by reference.py, from docstrings
PAGES = [page for page in sorted({*DOCS.rglob("*.md"), *ROOT.glob("*.md")}) if WRITTEN not in page.parents]


def test_every_program_on_a_page_compiles() -> None:
    for page in PAGES:
        for number, program in enumerate(programs_of(page)):
            compile(program.code, f"{page.name}:{number}", "exec")


@pytest.mark.long  # half a minute
def test_the_site_builds_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs sphinx: pip install marlcore[docs]")
    from sphinx.util.inventory import InventoryFile

    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", str(DOCS), str(tmp_path / "site")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with open(tmp_path / "site" / "objects.inv", "rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    named = {name for kind in ("py:class", "py:function", "py:exception") for name in inventory.get(kind, {})}
    assert [name for name in dir(mc) if f"marlcore.{name}" not in named and name != "cluster"] == []
    assert reference.public_classes().keys() - named == set()
    assert (tmp_path / "site" / "searchindex.js").stat().st_size > 10_000
