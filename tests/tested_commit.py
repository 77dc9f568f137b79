"""The commit that a long run has tested, for files of results."""

import subprocess

from deploy.local.cache import REPOSITORY


def tested_commit(*paths: str) -> str:
    """Of the sources that ran (the product, the local servers and `paths`), with a `+` if they were changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "cdcd", "deploy", *paths)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
