import json
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cdcd.cli.__main__ import main
from cdcd.cli.mirror_parts import log_to, settings_of, target_of
from cdcd.config.mirror import MirrorLogConfig, parse_mirror
from cdcd.mirror.watching.progress import BatchDone, MirrorStarted, Progress, TableFailed, TableStopped

CONFIG = """
name: shop
kafka: {bootstrap_servers: 'b:1', properties: {security.protocol: SSL}}
target: {location: /lake, namespace: mirror}
tables: {include: ["public.*"], exclude: ["public.x"], history: ["public.o*"], json_as: variant}
batches: {interval_s: 1, records_max: 2000, threads: 3}
maintenance: {keep_s: 60}
"""


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["mirror", *arguments])
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_the_reference_needs_no_configuration(capsys: pytest.CaptureFixture[str]):
    assert run("--reference") == 0
    assert "bootstrap_servers: localhost:9092" in capsys.readouterr().out


def test_without_a_configuration_it_says_so(capsys: pytest.CaptureFixture[str]):
    assert run() == 2
    assert "--config" in capsys.readouterr().err


def test_the_variable_of_the_pipeline_does_not_name_the_mirrors_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CDCD_CONFIG", "mirror.yaml")
    assert run() == 2
    assert "CDCD_MIRROR_CONFIG" in capsys.readouterr().err


def test_a_wrong_configuration_ends_it_before_spark_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mirror.yaml"
    file.write_text("name: shop\n")
    assert run("--config", str(file)) == 2
    assert "kafka.bootstrap_servers: is required" in capsys.readouterr().err


def test_a_table_is_read_from_a_database_that_somebody_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mirror.yaml"
    file.write_text(CONFIG)
    assert run("--config", str(file), "--snapshot", "public.orders") == 2
    assert "--source" in capsys.readouterr().err
    assert run("--config", str(file), "--where", "id < 10") == 2
    assert "--where needs --snapshot" in capsys.readouterr().err


def test_without_pyspark_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "mirror.yaml"
    file.write_text(CONFIG)
    monkeypatch.setattr("cdcd.cli.mirror_parts.find_spec", lambda _: None)
    assert run("--config", str(file)) == 2
    assert "cdcd[spark]" in capsys.readouterr().err


def test_status_says_what_is_missing_before_spark_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "mirror.yaml"
    assert run("status") == 2
    assert "--config" in capsys.readouterr().err
    file.write_text("name: shop\n")
    assert run("status", "--config", str(file)) == 2
    assert "kafka.bootstrap_servers: is required" in capsys.readouterr().err
    file.write_text(CONFIG)
    monkeypatch.setattr("cdcd.cli.mirror_parts.find_spec", lambda _: None)
    # The option may stand before the command, as it stands before the mirror's other options.
    for arguments in (["status", "--config", str(file)], ["--config", str(file), "status"]):
        assert run(*arguments) == 2
        assert "cdcd[spark]" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("pyspark") is None, reason="settings name types of PySpark")
def test_only_tables_of_the_mirror_are_folded_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mirror.yaml"
    file.write_text(CONFIG)
    assert run("fold", "--config", str(file), "public.a", "public.x") == 2
    assert "The mirror leaves public.x out." in capsys.readouterr().err


def test_nothing_is_folded_on_demand_without_tables_or_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "mirror.yaml"
    file.write_text(CONFIG + "change_log: only\n")
    assert run("fold", "--config", str(file)) == 2
    assert "there are no tables to fold" in capsys.readouterr().err
    file.write_text(CONFIG)
    monkeypatch.setattr("cdcd.cli.mirror_parts.find_spec", lambda _: None)
    assert run("fold", "--config", str(file)) == 2
    assert "cdcd[spark]" in capsys.readouterr().err


def test_options_of_the_mirror_are_not_for_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("--once", "status", "--config", str(tmp_path / "x")) == 2
    assert "The option --once does not belong to the command status" in capsys.readouterr().err


def test_what_is_said_goes_to_standard_output_as_lines_or_as_json(capsys: pytest.CaptureFixture[str]):
    batch = BatchDone(7, (Progress("public.a", 3, 2, 0x30, 0.5),), 1.0)
    for log in ({"format": "console"}, {"format": "json"}):
        say = log_to(MirrorLogConfig.model_validate(log))
        say(batch)
        say(TableStopped("public.a", "n changed", "read it again"))
    shown = capsys.readouterr().out.splitlines()
    assert shown[:4] == [
        "batch 7: 3 changes in 1.0 s, 3/s, LSN 0/30",
        "  public.a: 3 changes of 2 rows in 0.5 s",
        "public.a STOPPED: n changed",
        "  read it again",
    ]
    done, stopped = map(json.loads, shown[4:])
    assert list(done)[:3] == ["timestamp", "level", "event"]
    assert (done["event"], done["level"], done["batch_id"], done["commit_lsn"]) == (
        "mirror.batch", "info", 7, "0/30",
    )  # fmt: skip
    assert done["tables"] == [
        {"table": "public.a", "changes": 3, "rows": 2, "commit_lsn": "0/30", "seconds": 0.5}
    ]
    assert set(done) == {"timestamp", "level", "event", *BatchDone.fields_logged()}
    assert (stopped["event"], stopped["level"], stopped["hint"]) == (
        "table.stopped",
        "error",
        "read it again",
    )


@pytest.mark.parametrize("form", ["console", "json"])
def test_what_is_below_the_level_is_not_said(form: str, capsys: pytest.CaptureFixture[str]):
    say = log_to(MirrorLogConfig.model_validate({"format": form, "level": "error"}))
    say(MirrorStarted("shop", 3, once=True))
    say(TableFailed("public.a", "no", ""))
    assert capsys.readouterr().out == ""
    say(TableStopped("public.a", "no", ""))
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark comes with `make spark`")
def test_the_job_is_told_what_the_configuration_says():
    config = parse_mirror(CONFIG, {})
    settings = settings_of(config, consistent=True)
    assert settings.kafka.options()["kafka.security.protocol"] == "SSL"
    assert settings.checkpoint_location == "/lake/_cdcd/shop"
    assert (settings.interval_s, settings.batch_records_max, settings.threads) == (1, 2000, 3)
    assert (settings.consistent, settings.variant, settings.maintenance.keep_s) == (True, True, 60)
    assert settings.wants("public.orders")
    assert not settings.wants("public.x")
    assert settings.keeps_history("public.orders")
    assert target_of(config).format == "iceberg"


def test_tables_that_are_to_be_read_again_need_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mirror.yaml"
    for tables in ("on_incompatible: reload", 'on_incompatible_for: {"public.x": reload}'):
        file.write_text(CONFIG.replace("tables: {", f"tables: {{{tables}, "))
        assert run("--config", str(file)) == 2
        assert "--source FILE" in capsys.readouterr().err


def test_spark_reads_no_table_of_a_pipeline_that_protects_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mirror.yaml").write_text(CONFIG)
    (tmp_path / "cdcd.yaml").write_text(
        "name: shop\npostgres: {dsn: 'postgresql://cdcd@db/shop'}\nkafka: {bootstrap_servers: 'b:1'}\n"
        "columns: {exclude: ['*.*.secret']}\n"
    )
    assert run("--config", str(tmp_path / "mirror.yaml"), "--source", str(tmp_path / "cdcd.yaml")) == 2
    said = capsys.readouterr().err
    assert "protects columns" in said
    assert "cdcd snapshot start" in said


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("format: {decimal_handling_mode: double}", "Under format.decimal_handling_mode: double"),
        ("format: {interval_handling_mode: numeric}", "Under format.interval_handling_mode: numeric"),
        ("topics: {skipped_operations: [d]}", "leave out the operations d"),
        ("event_flattening: {enabled: true}", "are flattened"),
        ("format: {value: cloudevents}", "records are CloudEvents"),
        ("filters: {tables: {public.t: {keep: row.id > 1}}}", "filters the rows of public.t"),
        (
            "routes: {tables: {public.t: {rules: [{when: row.id > 1, topic: shop.public.t-x}]}}}",
            "routes the rows of public.t to several topics",
        ),
        ("key: {columns: {a.b: [c]}}", "chooses the keys of records"),
        ("fields: {tables: {a.b: {rename: {c: d}}}}", "renames fields"),
    ],
)
def test_spark_reads_no_table_whose_topic_has_other_types_or_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, said: str
):
    (tmp_path / "mirror.yaml").write_text(CONFIG)
    (tmp_path / "cdcd.yaml").write_text(
        "name: shop\npostgres: {dsn: 'postgresql://cdcd@db/shop'}\nkafka: {bootstrap_servers: 'b:1'}\n"
        + section
    )
    assert run("--config", str(tmp_path / "mirror.yaml"), "--source", str(tmp_path / "cdcd.yaml")) == 2
    assert said in capsys.readouterr().err


def test_tags_need_common_lsns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mirror.yaml"
    file.write_text(
        "name: shop\nkafka: {bootstrap_servers: 'b:1'}\ntarget: {location: /lake}\nbatches: {tag_interval_s: 60}\n"
    )
    assert run("--config", str(file)) == 2
    assert "start with --consistent" in capsys.readouterr().err


def test_a_mirror_without_a_log_is_refused_with_the_way_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mirror.yaml"
    file.write_text(
        "name: shop\nkafka: {bootstrap_servers: 'b:1'}\ntarget: {location: /lake}\nchange_log: none\n"
    )
    assert run("--config", str(file), "--once") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "this version keeps tables by folds from a log. Remove the line" in said
    assert "takes its tables over without reading them again" in said


@pytest.mark.parametrize("option", ["--consistent", "--replay-quarantine", "--relayout=public.t"])
def test_a_log_alone_has_no_tables_to_work_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
):
    file = tmp_path / "mirror.yaml"
    file.write_text(
        "name: shop\nkafka: {bootstrap_servers: 'b:1'}\ntarget: {location: /lake}\nchange_log: only\n"
    )
    assert run("--config", str(file), option) == 2
    assert "set change_log to fold" in capsys.readouterr().err


def test_spark_reads_no_table_into_a_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mirror.yaml").write_text(CONFIG + "change_log: only\n")
    (tmp_path / "cdcd.yaml").write_text(
        "name: shop\npostgres: {dsn: 'postgresql://cdcd@db/shop'}\nkafka: {bootstrap_servers: 'b:1'}\n"
    )
    options = ("--config", str(tmp_path / "mirror.yaml"), "--source", str(tmp_path / "cdcd.yaml"))
    assert run(*options, "--snapshot=public.t") == 2
    assert "set change_log to fold" in capsys.readouterr().err


def test_tables_of_states_need_a_log_that_is_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mirror.yaml"
    file.write_text(
        "name: shop\nkafka: {bootstrap_servers: 'b:1'}\ntarget: {location: /lake}\n"
        "change_log: only\ntables: {scd2: [public.t]}\n"
    )
    assert run("--config", str(file), "--once") == 2
    assert "Remove change_log, so that tables are folded, or remove tables.scd2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [
        ("only", "id=7", "only tables that are folded from a log"),
        ("fold", "id", "COLUMN=VALUE"),
        ("fold", "id=7 id=8", "once for each column"),
    ],
)
def test_forgetting_a_row_needs_folded_tables_and_a_whole_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, key: str, said: str
):
    file = tmp_path / "mirror.yaml"
    file.write_text(
        f"name: shop\nkafka: {{bootstrap_servers: 'b:1'}}\ntarget: {{location: /lake}}\nchange_log: {kind}\n"
    )
    assert run("forget", "public.t", *key.split(), "--config", str(file)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark comes with `make spark`")
def test_a_partition_field_that_is_none_is_refused_with_its_place_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    fields = "partition_by: {public.orders: [days(at), weeks(at)]}"
    file = tmp_path / "mirror.yaml"
    file.write_text(CONFIG.replace("tables: {", f"tables: {{{fields}, "))
    assert run("--config", str(file)) == 2
    said = capsys.readouterr().err
    assert "tables.partition_by: public.orders: 'weeks(at)'" in said
    assert "no transform 'weeks'" in said


@pytest.mark.skipif(find_spec("pyspark") is None, reason="pyspark comes with `make spark`")
def test_a_table_is_read_again_where_a_database_is_named_unless_the_configuration_says_otherwise():
    assert settings_of(parse_mirror(CONFIG, {}), source=True).reloads("public.orders")
    assert not settings_of(parse_mirror(CONFIG, {})).reloads("public.orders")
    stop = CONFIG.replace(
        "tables: {", 'tables: {on_incompatible: stop, on_incompatible_for: {"*.a": reload}, '
    )
    chosen = settings_of(parse_mirror(stop, {}), source=True)
    assert [chosen.reloads(table) for table in ("public.a", "public.b")] == [True, False]
