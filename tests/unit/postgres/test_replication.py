"""Which warnings of the server say that changes are left out of the stream."""

import pytest

from cdcd.postgres.refusals import Answer
from cdcd.postgres.replication import skips_publication

IN_GERMAN = "Laden der Publikation »p« wurde übersprungen"


@pytest.mark.parametrize(
    ("answer", "skips"),
    [
        pytest.param(Answer("55000", IN_GERMAN, function="LoadPublications"), True, id="in any language"),
        pytest.param(Answer("55000", 'skipped loading publication "p"'), True, id="without the function"),
        pytest.param(
            Answer(
                "55000", 'replication slot "s" does not have active_pid', function="StandbySlotsHaveCaughtup"
            ),
            False,
            id="a standby that is waited for",
        ),
        pytest.param(Answer("01000", "something"), False, id="another warning"),
    ],
)
def test_a_publication_is_skipped_if_the_server_says_so_and_not_by_the_sqlstate_alone(
    answer: Answer, skips: bool
):
    assert skips_publication(answer) is skips
