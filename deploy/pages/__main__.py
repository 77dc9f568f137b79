"""`python -m deploy.pages [FOLDER]`: build the site into FOLDER/site; FOLDER is build/pages by default."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from cdcd import __version__
from deploy.pages.source import REPOSITORY, write_source

CONFIG: Final = Path(__file__).with_name("mkdocs.yaml")


def build(folder: Path) -> int:
    """Write the tree and build the site from it; MkDocs' exit code, which is not 0 if it warned of anything.

    Raises:
        DeadLinkError: a document links to nothing.
    """
    source, site = folder / "source", folder / "site"
    for each in (source, site):
        shutil.rmtree(each, ignore_errors=True)
    write_source(source)
    shutil.copy(CONFIG.with_name("site.css"), source)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIG)]
    # The second is for a notice of the theme's authors about MkDocs 2, which is not one of MkDocs' warnings.
    environment = {
        **os.environ,
        "CDCD_PAGES": str(source),
        "CDCD_PAGES_VERSION": f"cdcd {__version__}",
        "NO_MKDOCS_2_WARNING": "1",
    }
    return subprocess.run([*command, "--site-dir", str(site)], check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REPOSITORY / "build" / "pages"))
