"""The pages in Markdown: their links lead somewhere, and their words are those of the house."""

import re
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import reference  # noqa: E402

WRITTEN = DOCS / "reference"  # by reference.py, and checked by the site's build
FOLDERS = (DOCS, ROOT / "examples", ROOT / "tests")
FOUND = {*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))}
PAGES = {str(page.relative_to(ROOT)): page for page in sorted(FOUND) if WRITTEN not in page.parents}
FORBIDDEN = ("goes on", "came of", "is not without", "nobody", "whoever")


def prose(page: Path) -> str:
    """A page without its programs."""
    return re.sub(r"^( *)(`{3,}|:{3,})[^\n]*\n.*?^\1\2`*$", "", page.read_text(), flags=re.M | re.S)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\))?)(?: \"[^\"]*\")?\)", prose(page))


def anchors(page: Path) -> set[str]:
    """Those of its headings, as GitHub and MyST make them."""
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


@pytest.mark.parametrize("name", PAGES)
def test_every_link_and_anchor_of_a_page_leads_somewhere(name: str) -> None:
    assert broken(PAGES[name]) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_external_link_is_well_formed_and_https(name: str) -> None:
    page = PAGES[name]
    outside = [link for link in links(page) if urlsplit(link).scheme]
    outside += re.findall(r"(?<![(`\"\w])https?:[^\s)>`\"]+", re.sub(r"`[^`\n]*`", "", prose(page)))
    assert [link for link in outside if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[^\s<>]*)?", link)] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_has_an_alternative_text(name: str) -> None:
    assert re.findall(r"!\[\s*\]\([^)]*\)", prose(PAGES[name])) == []


@pytest.mark.parametrize("name", PAGES)
def test_lines_of_code_fit_the_site(name: str) -> None:
    """At 1440 pixels there is room for 120 columns."""
    blocks = re.findall(r"^( *)(`{3,})[^\n]*\n(.*?)^\1\2`*$", PAGES[name].read_text(), flags=re.M | re.S)
    assert [line for *_, code in blocks for line in code.split("\n") if len(line) > 120] == []


@pytest.mark.parametrize("name", [path.name for path in sorted((DOCS / "pictures").glob("*.svg"))])
def test_a_picture_is_whole_by_itself_and_on_a_page(name: str) -> None:
    text = (DOCS / "pictures" / name).read_text()
    assert ElementTree.fromstring(text)[0].text  # its title
    assert re.findall(r"https?://|@import|url\((?!#)", text) == ["http://"]  # the namespace
    assert any(f"pictures/{name})" in page.read_text() for page in PAGES.values())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_word_that_the_style_forbids(name: str) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(PAGES[name]))
    found = re.findall(rf"[^\n]*\b(?:{'|'.join(FORBIDDEN)})\b[^\n]*", text, re.I)
    assert found == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n\n[x](#a-b-c) [y](#missing) [z](other.md)\n```sh\n[no](link.md)\n```\n")
    assert broken(page) == ["#missing", "other.md"]
