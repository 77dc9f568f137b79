"""The tree from which MkDocs builds the site: the repository's documents, with links that hold there.

A link in a document leads to one of these:

- another document, or a picture: the link stays as it is;
- a folder with a README: the link leads to that;
- a file of the repository that the site shows (`SHOWN`): the tree gets a page with the file, and the link leads to it;
- anything else in the repository, such as another folder or a module: the site has the words of the link only;
- nothing: `DeadLinkError`.
"""

import posixpath
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]

DOCUMENTS: Final = (
    "*.md",
    "docs/*.md",
    "docs/adr/*.md",
    "deploy/*.md",
    "deploy/spark/*.md",
    "helm/cdcd/*.md",
)
"""Where documents are, as patterns of paths."""

SHOWN: Final = {".sql": "sql", ".yaml": "yaml", ".service": "ini"}
"""Endings of files that the site shows, and the language in which they are highlighted."""

_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^ *(```|~~~)")
_ELSEWHERE: Final = re.compile(r"[a-z]+:|#")


class DeadLinkError(Exception):
    """A document links to a path that the repository does not have."""


@cache
def documents() -> tuple[str, ...]:
    """Paths of all documents, relative to the repository."""
    found = {path.relative_to(REPOSITORY).as_posix() for each in DOCUMENTS for path in REPOSITORY.glob(each)}
    return tuple(sorted(found))


def write_source(folder: Path) -> None:
    """Write the tree into an empty folder.

    Raises:
        DeadLinkError: a document links to nothing.
    """
    pages = documents()
    shown: set[str] = set()
    for page in pages:
        _write(folder / page, linked(page, (REPOSITORY / page).read_text(), shown))
    for name in sorted(shown):
        path = REPOSITORY / name
        if path.suffix not in SHOWN:
            shutil.copy(path, folder / name)
            continue
        text = f"# {name}\n\n~~~~{SHOWN[path.suffix]}\n{path.read_text()}~~~~\n"
        _write(folder / f"{name}.md", text)


def linked(page: str, text: str, shown: set[str]) -> str:
    """A document with links that hold on the site. Files and pictures that its links show are added to `shown`."""

    def on_site(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        if _ELSEWHERE.match(target):
            return match[0]
        path, mark, anchor = target.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        file = REPOSITORY / name
        if not file.exists():
            raise DeadLinkError(f"{page} links to {target}, and the repository has no {name}.")
        if image:
            shown.add(name)
        if image or name in documents():
            return match[0]
        if f"{name}/README.md" in documents():
            return f"[{words}]({path}/README.md)"
        if file.suffix in SHOWN:
            shown.add(name)
            return f"[{words}]({path}.md{mark}{anchor})"
        return str(words)

    return "".join([_LINK.sub(on_site, part) if is_prose else part for is_prose, part in _parts(text)])


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The lines of a document, each with whether it is outside of fenced code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
            yield False, line
        elif match and match[1] == fence:
            fence = ""
            yield False, line
        else:
            yield not fence, line


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
