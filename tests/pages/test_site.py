"""The site of the documents: MkDocs builds it without a warning, and every page that it links to is there."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from deploy.local.cache import REPOSITORY


class Page(HTMLParser):
    """The links of a page, and the places in it that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places.add(found.get("id") or "")
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        self.loads += [value for name in ("src", "href") if tag != "a" and (value := found.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    done = subprocess.run(
        [sys.executable, "-m", "deploy.pages", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_link_leads_to_a_page_and_a_place_of_the_site(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, place = urldefrag(unquote(link))
            file = (path.parent / target).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if file not in pages or place not in pages[file].places | {""}:
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_no_page_loads_anything_from_another_server(pages: dict[Path, Page]) -> None:
    assert [load for page in pages.values() for load in page.loads if re.match(r"[a-z]+:|//", load)] == []


def test_the_page_of_records_shows_records_and_types(site: Path) -> None:
    text = (site / "docs" / "records" / "index.html").read_text()
    assert text.count("<table>") >= 6
    assert "0.30000000000000004" in text
    assert "__debezium.newkey" in text


def test_the_reference_of_the_python_interface_has_its_functions(site: Path) -> None:
    text = (site / "docs" / "api" / "index.html").read_text()
    for name in ("read_changes", "apply_changes", "load_snapshot", "PositionError"):
        assert f"{name}</span>" in text, name
