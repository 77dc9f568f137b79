"""The changes of a release in the repository: a section of CHANGELOG.md, addresses, a contact, and a tag."""

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from cdcd import __version__
from deploy.local.cache import REPOSITORY, LocalServerError, run
from deploy.release.charts import semantic

VARIABLES = ("CDCD_REPOSITORY", "CDCD_SECURITY_CONTACT")
"""The address of the sources (https://…), and the contact for reports of vulnerabilities."""


def changes(texts: Mapping[str, str], version: str, day: str, address: str, contact: str) -> dict[str, str]:
    """The texts of the files that a release of `version` changes, by path.

    An empty `address` or `contact` is not written.
    LocalServerError: a file has another version, or CHANGELOG.md has nothing under [Unreleased].
    """
    chart, citation, changelog = (
        texts[name] for name in ("helm/cdcd/Chart.yaml", "CITATION.cff", "CHANGELOG.md")
    )
    for name, line in {
        "helm/cdcd/Chart.yaml": f"version: {semantic(version)}\nappVersion: {version}\n",
        "CITATION.cff": f"version: {version}\n",
    }.items():
        if line not in texts[name]:
            raise LocalServerError(f"{name} is not of version {version}.")
    changed = {"CHANGELOG.md": _section(changelog, version, day)}
    if address:
        changed["helm/cdcd/Chart.yaml"] = _once(
            chart, "maintainers:", f"home: {address}\nsources: [{address}]\n"
        )
        changed["CITATION.cff"] = _once(citation, "license:", f"repository-code: {address}\n")
    if contact:
        changed["SECURITY.md"] = texts["SECURITY.md"].replace("SECURITY_CONTACT", contact)
    return {name: text for name, text in changed.items() if text != texts[name]}


def _section(changelog: str, version: str, day: str) -> str:
    """Changelog in which the unreleased entries are under the heading of `version`."""
    if f"## [{version}]" in changelog:
        return changelog
    found = re.search(r"^## \[Unreleased\]\n", changelog, re.MULTILINE)
    if found is None or not re.match(r"\s*### ", changelog[found.end() :]):
        raise LocalServerError("CHANGELOG.md has nothing under [Unreleased].")
    return f"{changelog[: found.end()]}\n## [{version}] - {day}\n{changelog[found.end() :]}"


def _once(text: str, before: str, lines: str) -> str:
    return (
        text
        if lines in text
        else re.sub(rf"^{before}", f"{lines}{before}", text, count=1, flags=re.MULTILINE)
    )


def tag(*, write: bool) -> str:
    """Make the commit and the tag of the release if `write` is true. Return a report of what was or would be done.

    LocalServerError: something is not committed, the tag exists already, or, with `write`, a variable is not set.
    """
    name = f"v{__version__}"
    address, contact = (os.environ.get(variable, "").rstrip("/") for variable in VARIABLES)
    paths = ("CHANGELOG.md", "helm/cdcd/Chart.yaml", "CITATION.cff", "SECURITY.md")
    texts = {path: (REPOSITORY / path).read_text() for path in paths}
    changed = changes(texts, __version__, datetime.now(UTC).date().isoformat(), address, contact)
    lacking = [variable for variable, value in zip(VARIABLES, (address, contact), strict=True) if not value]
    dirty = _git("status", "--porcelain", "--untracked-files=no").strip()
    exists = _git("tag", "--list", name).strip()
    if not write:
        notes = [f"TAG=1 would change {', '.join(changed) or 'nothing'}, commit, and tag {name}."]
        notes += [f"It needs {' and '.join(lacking)}."] if lacking else []
        notes += [f"It needs a tree in which everything is committed:\n{dirty}"] if dirty else []
        notes += [f"The tag {name} exists already."] if exists else []
        return "\n".join(notes)
    if lacking or dirty or exists:
        reason = f"{' and '.join(lacking)} not set" if lacking else "something is not committed"
        raise LocalServerError(f"No tag: {f'{name} exists already' if exists else reason}.")
    for path, text in changed.items():
        Path(REPOSITORY, path).write_text(text)
    if changed:
        _git("add", *changed)
        _git("commit", "--quiet", "--message", f"Release {__version__}")
    _git("tag", "--annotate", name, "--message", f"cdcd {__version__}")
    return f"Tagged {name}. Push it: git push --follow-tags"


def _git(*words: str) -> str:
    return run(["git", *words], cwd=REPOSITORY)
