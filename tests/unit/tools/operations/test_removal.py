"""What a removal takes for the pipeline's own, from the configuration."""

import pytest

from cdcd.tools.operations.removal import pipeline_of
from tests.unit.config.test_loading import parse


@pytest.mark.parametrize(
    ("topic", "is_own"),
    [("__debezium-heartbeat.shop", True), ("shop.beats", True), ("all_heartbeats", False)],
)
def test_a_topic_of_heartbeats_is_the_pipelines_own_if_it_has_its_prefix(topic: str, is_own: bool):
    config = parse(f"heartbeat: {{interval_s: 5}}\ntopics: {{heartbeat: {topic}}}\n")
    pipeline = pipeline_of(config, "cdcd.yaml", "")
    assert (topic in pipeline.own_topics) == is_own
    assert "shop.message" in pipeline.own_topics
    assert "shop.checkpoint" not in pipeline.own_topics
