"""The documentation's site and pages: programs compile, links have targets, and no forbidden word occurs."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from pages import ROOT, programs_of

import marlcore as mc

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import reference  # noqa: E402

WRITTEN = DOCS / "reference"  # by reference.py, from docstrings, and checked by the site's build
FOLDERS = (DOCS, ROOT / "examples", ROOT / "tests")
FOUND = {*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))}
PAGES = {str(page.relative_to(ROOT)): page for page in sorted(FOUND) if WRITTEN not in page.parents}
FORBIDDEN = ("goes on", "came of", "is not without", "nobody", "whoever")


def test_every_program_on_a_page_compiles() -> None:
    for name, page in PAGES.items():
        for number, program in enumerate(programs_of(page)):
            compile(program.code, f"{name}:{number}", "exec")


@pytest.mark.long  # half a minute
def test_the_site_builds_and_has_every_public_name(tmp_path: Path) -> None:
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


def prose(page: Path) -> str:
    """A page without its programs."""
    return re.sub(r"^( *)(`{3,}|:{3,})[^\n]*\n.*?^\1\2`*$", "", page.read_text(), flags=re.M | re.S)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?)(?: \"[^\"]*\")?\)", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    seen: Counter[str] = Counter()
    found = set()
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", prose(page), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found | set(re.findall(r"^\(([\w-]+)\)=$", page.read_text(), re.M))


def broken(page: Path) -> list[str]:
    """The links within the repository that lead nowhere."""
    found = []
    for link in links(page):
        if urlsplit(link).scheme:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if target.parent == WRITTEN and target.stem in reference.PAGES:
            continue
        known = target.exists() and (not anchor or (target.suffix == ".md" and anchor in anchors(target)))
        found += [] if known else [link]
    return found


def malformed(page: Path) -> list[str]:
    """The links to elsewhere that are no https addresses."""
    outside = [link for link in links(page) if urlsplit(link).scheme]
    outside += re.findall(r"(?<![(`\"\w])https?:[^\s)>`\"]+", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [link for link in outside if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[^\s<>]*)?", link)]


def unnamed(page: Path) -> list[str]:
    """The pictures without an alternative text."""
    return re.findall(r"!\[\s*\]\([^)]*\)", prose(page))


def wide(page: Path) -> list[str]:
    """The lines of programs that do not fit the site: at 1440 pixels there is room for 120 columns."""
    blocks = re.findall(r"^( *)(`{3,})[^\n]*\n(.*?)^\1\2`*$", page.read_text(), flags=re.M | re.S)
    return [line for *_, code in blocks for line in code.split("\n") if len(line) > 120]


def forbidden(page: Path) -> list[str]:
    """The lines with a word that the style forbids."""
    lines = re.sub(r"`[^`\n]*`", "", prose(page)).lower().split("\n")
    return [line for line in lines if re.search(rf"\b(?:{'|'.join(FORBIDDEN)})\b", line)]


@pytest.mark.parametrize("faults", [broken, malformed, unnamed, wide, forbidden])
def test_no_page_has_a_fault(faults: Callable[[Path], list[str]]) -> None:
    assert {name: found for name, page in PAGES.items() if (found := faults(page))} == {}


def test_a_picture_is_whole_by_itself_and_on_a_page() -> None:
    pages = "".join(page.read_text() for page in PAGES.values())
    for path in sorted((DOCS / "pictures").glob("*.svg")):
        text = path.read_text()
        assert ElementTree.fromstring(text)[0].text  # its title
        assert re.findall(r"https?://|@import|url\((?!#)", text) == ["http://"]  # the namespace
        assert f"pictures/{path.name})" in pages


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n\n[x](#a-b-c) [y](#missing) [z](other.md)\n```sh\n[no](link.md)\n```\n")
    assert broken(page) == ["#missing", "other.md"]
