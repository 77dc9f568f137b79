"""Which other pipelines refuse a transactional id, by their newest checkpoints."""

import pytest

from cdcd.adapters.kafka.shared_id import RECENT_S, IdUse, Sharer, refusal


def test_the_first_recent_record_in_a_topic_that_this_principal_may_write_refuses():
    gone = Sharer("gone", "gone.checkpoint", RECENT_S + 1, may_write=True)
    runs = Sharer("runs", "runs.checkpoint", 7.2, may_write=True)
    refused = refusal([gone, runs], "cdcd-shop")
    assert refused is not None
    assert refused.exit_code == 7
    assert "pipeline 'runs' (topic runs.checkpoint)" in refused.message
    assert "7 s ago" in refused.message
    assert "kafka.transactional_id: cdcd-shop-2" in refused.hint
    assert "--delete --topic runs.checkpoint" in refused.hint


@pytest.mark.parametrize(
    "sharer",
    [
        Sharer("gone", "gone.checkpoint", RECENT_S, may_write=True),
        Sharer("tomorrow", "a.checkpoint", -RECENT_S, may_write=True),
        Sharer("stranger", "b.checkpoint", 1, may_write=False),
    ],
    ids=lambda sharer: sharer.pipeline,
)
def test_what_a_stranger_may_have_written_refuses_nothing(sharer: Sharer):
    assert refusal([sharer], "cdcd-shop") is None


def test_a_pipeline_without_kafka_transactions_names_no_id():
    assert IdUse("", "slot").headers == []
    assert dict(IdUse("cdcd-shop", "slot").headers) == {
        "cdcd.transactional_id": b"cdcd-shop",
        "cdcd.slot": b"slot",
    }


def test_the_name_of_a_stranger_has_a_limit_and_no_hidden_characters():
    told = Sharer("\u202ex" * 100, "a.checkpoint", 1, may_write=True).told
    assert "\u202e" not in told
    assert len(told) < 120
