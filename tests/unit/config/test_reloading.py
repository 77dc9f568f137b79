"""Secrets whose files change while the daemon runs."""

from pathlib import Path

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.config.reloading import AT_ONCE, NEXT_SESSION, _keys, reloaded, reread


def configured(folder: Path) -> Config:
    for name, text in (
        ("dsn", "postgresql://cdcd@db/shop"),
        ("password", "one"),
        ("sasl", "uno"),
        ("oauth", "un"),
    ):
        (folder / name).write_text(f"{text}\n")
    return parse_config(
        f"""
        name: shop
        postgres: {{dsn_file: {folder}/dsn, password_file: {folder}/password}}
        kafka:
          bootstrap_servers: kafka:9092
          properties: {{sasl.username: cdcd}}
          properties_files: {{sasl.password: {folder}/sasl}}
        format: {{value: avro}}
        registry:
          url: http://registry:8081
          oauth: {{token_url: https://login/token, client_id: cdcd, client_secret_file: {folder}/oauth}}
        """,
        {},
    )


def test_what_the_files_hold_now_counts(tmp_path: Path) -> None:
    config = configured(tmp_path)
    (tmp_path / "dsn").write_text("postgresql://cdcd@other/shop")
    (tmp_path / "password").write_text("zwei")
    (tmp_path / "sasl").write_text("due")
    (tmp_path / "oauth").write_text("deux")
    found = reread(config)
    assert found.postgres.libpq() == "postgresql://cdcd@other/shop?password=zwei"
    assert found.kafka.librdkafka()["sasl.password"] == "due"
    assert found.kafka.librdkafka()["sasl.username"] == "cdcd"
    secret = found.registry.oauth.client_secret
    assert secret is not None
    assert secret.get_secret_value() == "deux"
    assert "deux" not in repr(found)
    assert "zwei" not in repr(found)
    assert "due" not in repr(found)


def test_a_file_that_is_being_replaced_leaves_what_it_gave_before(tmp_path: Path) -> None:
    config = configured(tmp_path)
    (tmp_path / "password").unlink()
    (tmp_path / "sasl").write_text("")
    assert reread(config) == config


def test_without_files_nothing_changes() -> None:
    text = "{name: shop, postgres: {dsn: 'host=db', password: one}, kafka: {bootstrap_servers: 'kafka:9092'}}"
    config = parse_config(text, {})
    assert reread(config) == config


FILE = """
name: shop
postgres: {dsn: 'host=db', password: old}
kafka: {bootstrap_servers: 'broker:9092'}
"""


def parse(more: str = "", text: str = FILE) -> Config:
    return parse_config(text + more, {})


@pytest.fixture
def before() -> Config:
    return parse()


def test_the_same_file_changes_nothing(before: Config):
    found = reloaded(before, parse())
    assert found.config == before
    assert (found.at_once, found.next_session, found.needs_restart) == ([], [], [])


def test_limits_and_the_log_change_at_once(before: Config):
    after = parse("log: {level: debug, format: json}\nready: {lag_s_max: 7}\nhttp: {stall_s_max: 5}\n")
    found = reloaded(before, after)
    assert sorted(found.at_once) == ["http.stall_s_max", "log.format", "log.level", "ready.lag_s_max"]
    assert found.config == after
    assert found.needs_restart == []


def test_a_token_for_actions_counts_at_once_also_from_a_file(before: Config, tmp_path: Path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    first = reloaded(before, parse(f"http: {{token_file: '{tmp_path}/token'}}\n"))
    assert first.at_once == ["http.token", "http.token_file"]
    (tmp_path / "token").write_text("fedcba9876543210\n")
    found = reloaded(first.config, parse(f"http: {{token_file: '{tmp_path}/token'}}\n"))
    assert (found.at_once, found.needs_restart) == (["http.token"], [])
    assert found.config.http.token is not None
    assert found.config.http.token.get_secret_value() == "fedcba9876543210"


def test_a_password_counts_at_the_next_session(before: Config):
    found = reloaded(before, parse(text=FILE.replace("old", "new")))
    assert found.next_session == ["postgres.password"]
    assert found.config.postgres.libpq() == "host=db password='new'"


def test_what_the_pipeline_is_stays_as_it_was_and_is_named(before: Config):
    after = parse("topics: {prefix: other}\nlog: {level: debug}\n", FILE.replace("host=db", "host=other"))
    found = reloaded(before, after)
    assert found.at_once == ["log.level"]
    assert {"postgres.dsn", "topics.prefix"} <= set(found.needs_restart)
    assert found.config == before.model_copy(update={"log": after.log})


def test_a_secret_in_a_file_that_changed_needs_no_restart(tmp_path: Path):
    dsn, secret = tmp_path / "dsn", tmp_path / "secret"
    text = f"""
name: shop
postgres: {{dsn_file: {dsn}}}
kafka: {{bootstrap_servers: 'broker:9092', properties_files: {{sasl.password: {secret}}}}}
"""
    dsn.write_text("host=db password=old")
    secret.write_text("old")
    before = parse(text=text)
    dsn.write_text("host=db password=new")
    secret.write_text("new")
    found = reloaded(before, parse(text=text))
    assert sorted(found.next_session) == ["kafka.properties", "postgres.dsn"]
    assert found.needs_restart == []


def test_another_property_of_kafka_needs_a_restart(before: Config):
    after = parse(text=FILE.replace("9092'}", "9092', properties: {linger.ms: 5}}"))
    found = reloaded(before, after)
    assert found.needs_restart == ["kafka.properties"]
    assert found.config == before


def test_each_key_of_the_lists_is_a_key(before: Config):
    assert {*AT_ONCE, *NEXT_SESSION} <= {key for key, _ in _keys(before)}
    assert not {*AT_ONCE} & {*NEXT_SESSION}
