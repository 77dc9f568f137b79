"""Locales of many currencies for a test server, made by localedef, because machines have few of them.

A server that has the folder as LOCPATH in its environment knows these locales, and those of the C library. Where the
machine lacks localedef or the sources of locales (Debian: package `locales`), the tests are skipped with these words.
"""

import platform
import shutil
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from deploy.local.cache import cache_folder, cached, run

SOURCES: Final = Path("/usr/share/i18n/locales")

NAMES: Final = (
    *("ja_JP", "ko_KR", "is_IS", "vi_VN", "fa_IR"),  # no digits behind the point
    *("ar_KW", "ar_TN", "ar_BH", "ar_JO", "ar_OM", "ar_IQ", "ar_EG"),  # three
    *("de_DE", "de_CH", "en_US", "en_GB", "en_IN", "fr_FR", "hu_HU", "nl_NL", "sv_SE", "es_CL"),  # two
)
"""Locales of glibc. The tests ask the server for their digits."""


def locale_folder(*names: str) -> Path:
    """A folder that has these locales as `<name>.UTF-8`, and others that were asked for before."""
    missing = [name for name in names if not (SOURCES / name).exists()]
    if shutil.which("localedef") is None or missing:
        pytest.skip(
            f"MONEY IS NOT TESTED: this machine has no localedef, or no sources of {', '.join(missing) or 'locales'} "
            f"in {SOURCES} (Debian: apt install locales)"
        )
    folder = f"locales/{'-'.join(platform.libc_ver())}"
    for name in names:
        cached(f"{folder}/{name}.UTF-8", partial(_make, name))
    return cache_folder() / folder


def _make(name: str, folder: Path) -> None:
    run(["localedef", "-c", "-i", name, "-f", "UTF-8", folder])
