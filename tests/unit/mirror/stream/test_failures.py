from cdcd.core.errors import SinkError
from cdcd.mirror.stream.failures import classified


def test_records_that_are_gone_are_not_taken_for_a_broker_that_is_away():
    gone = classified(
        Exception("org.apache.kafka: Some data may have been lost because they are not available"), "b:1"
    )
    assert isinstance(gone, SinkError)
    assert "gone from Kafka" in gone.message
    assert "cdcd mirror --config FILE --snapshot TABLE" in gone.hint
    assert classified(Exception("something else"), "b:1") is None
