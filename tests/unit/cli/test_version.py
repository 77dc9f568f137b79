import re

import pytest

from cdcd import __version__
from cdcd.cli.__main__ import main


def test_it_shows_the_versions_of_what_a_bug_may_depend_on(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["version"])
    assert caught.value.code == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(shown) == ["cdcd", "python", "psycopg", "libpq", "librdkafka"]
    assert re.fullmatch(rf"{re.escape(__version__)} \((pure Python|compiled)\)", shown["cdcd"])
    for version in shown.values():
        assert re.match(r"\d+\.\d+", version)
