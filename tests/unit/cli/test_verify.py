from pathlib import Path

import pytest
import yaml

from cdcd.cli.__main__ import main
from cdcd.cli.mirror_rules import check_records
from cdcd.config.loading import parse_config

PIPELINE = (
    "name: shop\npostgres: {dsn: 'postgresql://cdcd@db/shop'}\nkafka: {bootstrap_servers: 'b:1'}\n"
    "registry: {url: 'http://r'}\n"
)
MIRROR = "name: shop\nkafka: {bootstrap_servers: 'b:1'}\ntarget: {location: /lake}\n"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said of options that do not go together, before a file is looked at."""
    with pytest.raises(SystemExit) as caught:
        main(["verify", "--config", "cdcd.yaml", *arguments])
    assert caught.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_mirror_needs_its_configuration(capsys: pytest.CaptureFixture[str]):
    assert "--target mirror needs --mirror FILE" in refused(capsys, "--target", "mirror")
    assert "--mirror works only with --target mirror" in refused(capsys, "--mirror", "mirror.yaml")


@pytest.mark.parametrize(
    "option",
    [("--since", "0/1"), ("--sample", "5"), ("--continuous",), ("--directory", "."), ("--port", "1")],
)
def test_options_of_the_topics_are_refused_for_a_mirror(
    capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
):
    said = refused(capsys, "--target", "mirror", "--mirror", "mirror.yaml", *option)
    assert f"{option[0]} works only with --target topics" in said


def test_repair_of_a_mirror_is_refused_with_the_command_that_reads_a_table_again(
    capsys: pytest.CaptureFixture[str],
):
    said = refused(capsys, "--target", "mirror", "--mirror", "mirror.yaml", "--repair")
    assert "cdcd mirror --config mirror.yaml --snapshot SCHEMA.TABLE --source cdcd.yaml" in said


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("event_flattening: {enabled: true}", "are flattened"),
        ("format: {value: cloudevents}", "records are CloudEvents"),
        ("format: {value: avro}", "need a schema registry (format.value: avro)"),
        ("format: {value: json_registry}", "need a schema registry (format.value: json_registry)"),
        ("format: {value: protobuf, change_header: true}", "need a schema registry (format.value: protobuf)"),
        ("topics: {skipped_operations: [d]}", "leave out the operations d"),
    ],
)
def test_a_mirror_whose_records_cannot_be_read_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, said: str
):
    (tmp_path / "cdcd.yaml").write_text(PIPELINE + section)
    (tmp_path / "mirror.yaml").write_text(MIRROR)
    given = ["--config", str(tmp_path / "cdcd.yaml"), "--mirror", str(tmp_path / "mirror.yaml")]
    with pytest.raises(SystemExit) as caught:
        main(["verify", "--target", "mirror", *given])
    assert caught.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "section",
    [
        "event_flattening: {enabled: true}",
        "format: {value: avro, key: avro}",
        "format: {value: json_registry}",
        "event_flattening: {enabled: true}\nformat: {value: avro}",
    ],
)
def test_a_mirror_is_compared_in_each_format_that_it_reads(section: str):
    config = yaml.safe_load(PIPELINE + section)
    config.setdefault("format", {})["change_header"] = True
    check_records(parse_config(yaml.safe_dump(config), {}))
