import pytest

from cdcd.core.errors import SinkError, SinkUnavailableError
from cdcd.mirror.platform.read_ends import kafka_failure


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting", SinkUnavailableError),
        (
            "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls",
            SinkUnavailableError,
        ),
        ("java.net.ConnectException: Connection refused", SinkUnavailableError),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", SinkError),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: bad", SinkError),
    ],
)
def test_a_broker_that_is_away_may_come_back_one_that_refuses_will_not(reason: str, kind: type):
    error = kafka_failure(reason, "b:1")
    assert type(error) is kind
    assert "b:1" in error.message
