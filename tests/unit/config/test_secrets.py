"""Secrets whose files change while the daemon runs."""

from pathlib import Path

from cdcd.config.loading import Config, parse_config
from cdcd.config.secrets import reread


def configured(folder: Path) -> Config:
    for name, text in (("dsn", "postgresql://cdcd@db/shop"), ("password", "one"), ("sasl", "uno")):
        (folder / name).write_text(f"{text}\n")
    return parse_config(
        f"""
        name: shop
        postgres: {{dsn_file: {folder}/dsn, password_file: {folder}/password}}
        kafka:
          bootstrap_servers: kafka:9092
          properties: {{sasl.username: cdcd}}
          properties_files: {{sasl.password: {folder}/sasl}}
        """,
        {},
    )


def test_what_the_files_hold_now_counts(tmp_path: Path) -> None:
    config = configured(tmp_path)
    (tmp_path / "dsn").write_text("postgresql://cdcd@other/shop")
    (tmp_path / "password").write_text("zwei")
    (tmp_path / "sasl").write_text("due")
    found = reread(config)
    assert found.postgres.libpq() == "postgresql://cdcd@other/shop?password=zwei"
    assert found.kafka.librdkafka()["sasl.password"] == "due"
    assert found.kafka.librdkafka()["sasl.username"] == "cdcd"
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
