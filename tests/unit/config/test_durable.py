import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import ConfigError

PLAIN = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"
DURABLE = "spool: {durable: true, durable_directory: /var/lib/cdcd/log}\n"


def test_it_is_off_and_has_a_directory_where_it_is_on():
    assert not parse_config(PLAIN, {}).spool.durable
    assert str(parse_config(PLAIN + DURABLE, {}).spool.durable_directory) == "/var/lib/cdcd/log"
    with pytest.raises(ConfigError, match="durable needs durable_directory"):
        parse_config(PLAIN + "spool: {durable: true}\n", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAIN.replace("host=db", "host=db, two_phase: true"), r"postgres\.two_phase: false"),
        (PLAIN.replace("host=db", "host=db, binary: true"), r"postgres\.binary: false"),
        (PLAIN.replace("'b:1'", "'b:1', delivery: at_least_once"), r"kafka\.delivery: exactly_once"),
        (PLAIN + "columns: {exclude: [public.t.secret]}\n", "all values in clear"),
    ],
)
def test_what_it_cannot_do_together_with_is_refused_by_name(text, said):
    parse_config(text, {})
    with pytest.raises(ConfigError, match=said):
        parse_config(text + DURABLE, {})
