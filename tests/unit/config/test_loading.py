import contextlib
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.config.keys import all_keys
from cdcd.config.loading import Config, load_config, parse_config
from cdcd.config.reference import effective_yaml
from cdcd.core.errors import ConfigError

MINIMAL = """\
name: shop
postgres:
  dsn: postgresql://cdcd@localhost:5432/shop
kafka:
  bootstrap_servers: localhost:9092
"""


def parse(text: str = "", **environ: str) -> Config:
    return parse_config(MINIMAL + text, environ)


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environ, "shop.yaml")
    first, *rest = caught.value.message.split("\n  ")
    if not rest:
        return [first.removeprefix("shop.yaml: ")]
    assert first == f"shop.yaml: {len(rest)} problems"
    return rest


def problem(text: str, **environ: str) -> str:
    (only,) = problems(text, **environ)
    return only


def test_what_is_left_out_is_derived_from_the_name():
    config = parse()
    assert config.postgres.slot == "cdcd_shop"
    assert config.postgres.publication == "cdcd_shop"
    assert config.postgres.tables is None
    assert config.kafka.transactional_id == "cdcd-shop"
    assert config.kafka.delivery == "exactly_once"
    assert config.topics.prefix == "shop"
    assert config.topics.message == "shop.message"
    assert config.topics.checkpoint == "shop.checkpoint"
    assert config.topics.schemas == "shop.schemas"
    assert config.kafka.dead_letter_topic == "shop.dead_letter"
    assert config.spool.directory == Path(tempfile.gettempdir()) / "cdcd-shop"


def test_topics_are_derived_from_the_prefix():
    config = parse("topics: {prefix: eu.shop, checkpoint: positions}")
    assert config.topics.message == "eu.shop.message"
    assert config.topics.checkpoint == "positions"
    assert config.kafka.dead_letter_topic == "eu.shop.dead_letter"


def test_the_shape_of_the_issue_is_accepted():
    config = parse_config(
        """
name: shop
postgres:
  dsn: postgresql://cdcd@localhost:5432/shop
  slot: cdcd_shop
  publication: cdcd_shop
  tables: ["public.*"]
  protocol: auto
  streaming: auto
  two_phase: false
  messages: true
  origin: any
  status_interval_s: 10
kafka:
  bootstrap_servers: localhost:9092
  delivery: exactly_once
  properties: {}
topics:
  prefix: shop
  create: {partitions: 1, replication_factor: 1, config: {}}
spool: {directory: null, memory_bytes_max: 67108864, disk_bytes_max: null}
http: {host: 127.0.0.1, port: 9464}
log: {level: info, format: auto}
""",
        {},
    )
    assert config == parse("topics: {}").model_copy(update={"postgres": config.postgres}), (
        "everything else there is a default"
    )
    assert config.postgres.tables == ("public.*",)


@pytest.mark.parametrize("empty", ["topics:", "spool: null", "http: {}", "topics: {create: }"])
def test_an_empty_section_has_its_defaults(empty):
    assert parse(empty) == parse()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", "off"),
        ("on", "on"),
        ("false", "off"),
        ("true", "on"),
        ("parallel", "parallel"),
        ("'off'", "off"),
    ],
)
def test_streaming_accepts_the_booleans_that_yaml_makes_of_off_and_on(text, expected):
    config = parse_config(MINIMAL.replace("kafka:", f"  streaming: {text}\nkafka:"), {})
    assert config.postgres.streaming == expected


def test_an_unknown_key_names_its_line_and_the_near_one():
    assert problem(MINIMAL.replace("dsn:", "slto: x\n  dsn:")) == (
        "line 3: postgres.slto: unknown key; did you mean postgres.slot?"
    )


def test_a_key_in_the_wrong_section_names_the_right_one():
    assert problem(MINIMAL + "partitions: 3\n").endswith("did you mean topics.create.partitions?")


def test_an_unlike_key_names_what_is_known_there():
    assert problem(MINIMAL + "log: {colour: red}\n") == (
        "line 6: log.colour: unknown key; known here: level, format"
    )


def test_every_problem_is_reported_at_once_in_the_order_of_the_file():
    text = """\
name: Shop
postgres:
  protocol: 7
  connect_timeout_s: yes
http: {port: "9464"}
ready: {lag_s_max: .nan}
log: verbose
"""
    found = problems(text)
    assert [line.split(": ")[1] for line in found] == [
        "kafka.bootstrap_servers",
        "name",
        "postgres.dsn",
        "postgres.protocol",
        "postgres.connect_timeout_s",
        "http.port",
        "ready.lag_s_max",
        "log",
    ]
    assert "must be auto, 1, 2, 3 or 4, not 7" in found[3]
    assert "must be a whole number, not true" in found[4]
    assert 'must be a whole number, not "9464"' in found[5]
    assert "must be a finite number" in found[6]
    assert "must be a mapping of keys" in found[7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http: {port: 65536}", "http.port: must be at most 65535, not 65536"),
        ("http: {port: -1}", "http.port: must be at least 0, not -1"),
        ("topics: {create: {partitions: 0}}", "topics.create.partitions: must be at least 1"),
        ("topics: {create: {partitions: 1.5}}", "topics.create.partitions: must be a whole number"),
        ("topics: {truncate: 1}", "topics.truncate: must be true or false"),
        ("topics: {prefix: a/b}", "topics.prefix: may hold only ASCII letters"),
        ("topics: {prefix: ..}", "topics.prefix: may hold only ASCII letters"),
        ("topics: {message: 5}", "topics.message: must be text; quote it, not 5"),
        (
            "topics: {message: a, checkpoint: a}",
            "topics: message, checkpoint and schemas must be three topics",
        ),
        (
            "topics: {message: s.a, checkpoint: s_a}",
            "must be three topics, and their names must differ in more than",
        ),
        (
            "topics: {name: '{prefix}.{schema}.{tabel}'}",
            "topics.name: {tabel} is not a placeholder; there are {prefix}, {schema} and {table}",
        ),
        ("key: {columns: {orders: [id]}}", "key.columns.orders: must be <schema>.<table>"),
        ("key: {columns: {a.b: []}}", "key.columns.a.b: "),
        ("key: {columns: {a.b: [id, id]}}", "columns.a.b must have each column once"),
        ("partitioner: {columns: {orders: [id]}}", "partitioner.columns.orders: must be <schema>.<table>"),
        ("partitioner: {columns: {a.b: []}}", "partitioner.columns.a.b: "),
        ("partitioner: {columns: {a.b: [id, id]}}", "columns.a.b must have each column once"),
        ("tables: {include: []}", "tables.include: must not be empty"),
        (
            "tables: {exclude: ['a.*']}\noutbox: {topics: [outbox.event.x], tables: {a.b: {}}}",
            "outbox.tables: a.b is left out by tables.include or tables.exclude",
        ),
        (
            "tables: {exclude: ['a.*']}\nrecord: {directory: /r}",
            "record.directory: a recording begins again in each of its files",
        ),
        (
            "topics: {rename: [{regex: '(.*)', replacement: $1}]}\nrecord: {directory: /r}",
            "record.directory: a recording holds no rules with regular expressions",
        ),
        (
            "topics: {shared: {x.all: {tables: [a.b]}}}\nrecord: {directory: /r}",
            "record.directory: a recording holds no rules with regular expressions",
        ),
        ("topics: {name: '{schema}/{table}'}", "topics.name: may hold only ASCII letters"),
        ("topics: {rename: [{regex: '(a+)+', replacement: x}]}", "repeats a part that has a repetition"),
        ("topics: {rename: [{regex: '(.*)', replacement: $2}]}", "The expression has no group 2"),
        ("topics: {rename: [{regex: '[', replacement: x}]}", "no regular expression"),
        ("topics: {names: {a.b: cdcd.claims}}", "collides with that of the claims of all pipelines"),
        ("topics: {names: {orders: shop.a.b}}", "topics.names.orders: orders is not <schema>.<table>"),
        ("topics: {names: {a.b.c: shop.a.b}}", "a part that holds a point belongs in double quotes"),
        ("topics: {names: {a.b: shop.a/b}}", "topics.names.a.b: may hold only ASCII letters"),
        (
            "topics: {names: {a.b: " + "shop." + "x." * 123 + "}}",
            "topics.names.a.b: may hold only ASCII letters",
        ),
        (
            "topics: {names: {a.b: shop.x.y, a.c: shop.x_y.z, a.d: shop.x.y_z}}",
            'collides with that of table "a"."c"',
        ),
        ("topics: {names: {a.b: shop.x.y, '\"a\".b': shop.x.z}}", "names must have each table once"),
        ("topics: {message: shop.a_b, names: {a.b: shop.a.b}}", "collides with that of logical messages"),
        ("topics: {names: {a.b: shop.dead.letter}}", "kafka.dead_letter_topic must differ"),
        ("topics: {checkpoint: shop.dead_letter}", "kafka.dead_letter_topic must differ"),
        (
            "topics: {create: {config: {a: [1]}}}",
            "topics.create.config.a: must be text, a number or a boolean",
        ),
        ("spool: {memory_bytes_max: 1}", "spool.memory_bytes_max: must be at least 65536"),
        ("log: {level: loud}", 'log.level: must be debug, info, warning or error, not "loud"'),
        ("shutdown_timeout_s: soon", 'shutdown_timeout_s: must be a number, not "soon"'),
    ],
)
def test_a_wrong_value_says_what_is_right(text, says):
    assert says in problem(MINIMAL + text + "\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tables: public.*", 'postgres.tables: must be a list, such as ["public.*"], not "public.*"'),
        ("tables: []", "postgres.tables: must not be empty"),
        ("tables: [orders]", "postgres.tables[0]: must be <schema>.<table>"),
        ("tables: ['public.\"orders']", "a name with a dot, a star or a quote goes in double quotes"),
        ("tables: [a.b.c]", "postgres.tables[0]: must be <schema>.<table>"),
        ("slot: Shop", "postgres.slot: may hold only lower-case letters"),
        ("slot: " + "a" * 64, "postgres.slot: may hold only lower-case letters"),
        ("publication: ''", "postgres.publication: must be 1 to 63"),
        ("retry: {initial_s: 10, max_s: 5}", "postgres.retry: max_s must not be below initial_s"),
        ("status_interval_s: 0", "postgres.status_interval_s: must be at least 0.1"),
        ("password: 0123", "postgres.password: must be text; quote it"),
    ],
)
def test_a_wrong_value_for_postgres_says_what_is_right(line, says):
    assert says in problem(MINIMAL.replace("kafka:", f"  {line}\nkafka:"))


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("localhost:5432/shop", "must be a libpq URI"),
        ("''", "must be a libpq URI"),
        ("mysql://localhost/shop", "must be a libpq URI"),
        ("5432", "must be text"),
        ("host=db replication=database", "must not set replication"),
        ("postgresql://db/shop?replication=database", "must not set replication"),
    ],
)
def test_a_dsn_that_is_none_is_refused_without_being_shown(dsn, says):
    text = problem(MINIMAL.replace("postgresql://cdcd@localhost:5432/shop", dsn))
    assert f"postgres.dsn: {says}" in text
    assert dsn.strip("'") == "" or dsn not in text


@pytest.mark.parametrize(
    "dsn", ["host=db dbname=shop", "postgres://db", "service=shop", "postgresql:///shop"]
)
def test_any_form_of_dsn_that_libpq_knows_is_accepted(dsn):
    config = parse_config(MINIMAL.replace("postgresql://cdcd@localhost:5432/shop", dsn), {})
    assert config.postgres.libpq() == dsn


@pytest.mark.parametrize(
    ("name", "right"),
    [("shop", True), ("1shop_eu", True), ("a" * 58, True), ("a" * 59, False), ("_a", False), ("a-b", False),
     ("Ä", False), ("''", False), ("5", False)],
)  # fmt: skip
def test_a_name_must_serve_as_the_name_of_a_slot(name, right):
    text = MINIMAL.replace("shop\n", f"{name}\n", 1)
    if right:
        assert parse_config(text, {}).postgres.slot == f"cdcd_{name}"
    else:
        assert problem(text).startswith("line 1: name: ")


class TestProperties:
    def test_scalars_become_the_text_that_librdkafka_takes(self):
        config = parse_config(MINIMAL + "  properties: {linger.ms: 5, a: true, b: x, c: 0.5}\n", {})
        assert config.kafka.librdkafka() == {
            "bootstrap.servers": "localhost:9092",
            "linger.ms": "5",
            "a": "true",
            "b": "x",
            "c": "0.5",
        }

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("acks", "every in-sync replica"),
            ("enable.idempotence", "always idempotent"),
            ("transactional.id", "set kafka.transactional_id instead"),
            ("bootstrap.servers", "set kafka.bootstrap_servers instead"),
            ("isolation.level", "read_committed"),
            ("queue.buffering.max.kbytes", "set kafka.queue_bytes_max instead"),
            ("error_cb", "callback"),
        ],
    )
    def test_what_the_guarantees_rest_on_is_refused(self, name, says):
        text = problem(MINIMAL + f"  properties:\n    {name}: x\n")
        assert text.startswith(f"line 7: kafka.properties.{name}: is not for properties: ")
        assert says in text

    def test_the_partitioner_may_be_chosen(self):
        config = parse_config(MINIMAL + "  properties: {partitioner: consistent_random}\n", {})
        assert config.kafka.librdkafka()["partitioner"] == "consistent_random"

    def test_a_secret_that_yaml_reads_as_a_number_is_refused(self):
        text = problem(MINIMAL + "  properties: {sasl.password: 0123}\n")
        assert text == "line 6: kafka.properties: sasl.password must be text; quote it"

    def test_secrets_come_from_files_too(self, tmp_path):
        (tmp_path / "password").write_text("s3cret\n")
        config = parse_config(MINIMAL + f"  properties_files: {{sasl.password: {tmp_path}/password}}\n", {})
        assert config.kafka.librdkafka()["sasl.password"] == "s3cret"


class TestOversized:
    def test_a_claim_check_needs_a_directory(self):
        assert problem(MINIMAL + "  oversized: claim_check\n") == (
            "line 4: kafka: oversized: claim_check needs claim_check_directory or claim_check_store.url, not both"
        )

    def test_a_claim_check_with_a_directory_is_accepted(self):
        config = parse_config(MINIMAL + "  oversized: claim_check\n  claim_check_directory: /claims\n", {})
        assert config.kafka.claim_check_directory == Path("/claims")

    def test_a_claim_check_with_a_store_is_accepted(self):
        store = "{url: s3://claims/shop/2, endpoint: 'https://minio:9000', region: eu-central-1}"
        config = parse_config(MINIMAL + f"  oversized: claim_check\n  claim_check_store: {store}\n", {})
        assert config.kafka.claim_check_store.url == "s3://claims/shop/2"

    def test_a_claim_check_has_one_place(self):
        both = "  claim_check_directory: /claims\n  claim_check_store: {url: s3://claims}\n"
        assert "not both" in problem(MINIMAL + "  oversized: claim_check\n" + both)

    @pytest.mark.parametrize(
        "url",
        [
            "https://claims.example",
            "s3://",
            "s3://claims?secret=hush",
            "s3://user:hush@claims",
            "s3://claims/../other",
            "s3://claims//shop",
            "s3://claims/a b",
            "s3://claims/a\\nb",
        ],
    )
    def test_a_store_is_a_bucket_with_a_prefix(self, url: str):
        said = problem(MINIMAL + f'  claim_check_store: {{url: "{url}"}}\n')
        assert "url must be s3://BUCKET or s3://BUCKET/PREFIX" in said
        assert "hush" not in said

    @pytest.mark.parametrize(
        "endpoint", ["minio:9000", "https://", "https://user:hush@minio", "https://minio?hush", "ftp://minio"]
    )
    def test_the_endpoint_of_a_store_has_no_secrets(self, endpoint: str):
        said = problem(MINIMAL + f'  claim_check_store: {{endpoint: "{endpoint}"}}\n')
        assert "endpoint must" in said
        assert "hush" not in said


class TestYaml:
    def test_a_syntax_error_names_line_and_column(self):
        text = problem("name: shop\npostgres:\n\tdsn: x\n")
        assert text.startswith("shop.yaml, line 3, column 1: not valid YAML: ")

    def test_an_unreadable_character_is_named(self):
        assert "not valid YAML: special characters are not allowed" in problem("name: sh\x00op\n")

    @pytest.mark.parametrize("value", ["*s3cret", "!s3cret x"])
    def test_a_syntax_error_does_not_quote_what_may_be_a_secret(self, value):
        text = problem(MINIMAL + f"password: {value}\n")
        assert "must be quoted" in text
        assert "s3cret" not in text

    @pytest.mark.parametrize("text", ["- name: shop", "shop", "5"])
    def test_a_file_that_is_no_mapping_is_refused(self, text):
        assert problem(text) == "must be a mapping of keys, such as `name: shop`"

    @pytest.mark.parametrize("text", ["", "# nothing\n"])
    def test_an_empty_file_says_what_is_required(self, text):
        assert [line.split(": ")[0] for line in problems(text)] == [
            "kafka.bootstrap_servers",
            "name",
            "postgres.dsn",
        ]

    def test_two_documents_are_refused(self):
        assert "not valid YAML" in problem(MINIMAL + "---\nname: b\n")

    def test_a_key_that_is_given_twice_is_refused(self):
        assert problem(MINIMAL + "http: {port: 1}\nhttp: {port: 2}\n") == (
            "line 7: http: is given twice, first on line 6"
        )

    def test_a_key_that_is_not_text_is_refused(self):
        assert "has a key that is not text" in problem(MINIMAL + "? [a, b]\n: c\n")

    def test_anchors_and_merged_mappings_work(self):
        text = MINIMAL.replace("kafka:", "  retry: &pace {initial_s: 1, max_s: 9}\nkafka:")
        config = parse_config(text + "  retry:\n    <<: *pace\n    max_s: 8\n", {})
        assert (config.kafka.retry.initial_s, config.kafka.retry.max_s) == (1, 8)

    def test_a_mapping_that_holds_itself_is_refused(self):
        assert "nested too deeply" in problem("name: &a {b: *a}\n")

    def test_a_missing_file_is_an_error_with_a_hint(self, tmp_path):
        with pytest.raises(ConfigError, match=r"cannot read the configuration .*: No such file") as caught:
            load_config(tmp_path / "shop.yaml", {})
        assert "`cdcd init` writes a first configuration" in caught.value.hint

    def test_a_directory_is_an_error(self, tmp_path):
        with pytest.raises(ConfigError, match="Is a directory"):
            load_config(tmp_path, {})

    def test_a_file_that_is_not_utf_8_is_an_error(self, tmp_path):
        (tmp_path / "shop.yaml").write_bytes(b"name: sh\xf6p\n")
        with pytest.raises(ConfigError, match="not UTF-8 text, at byte 8"):
            load_config(tmp_path / "shop.yaml", {})


class TestInterpolation:
    def test_a_variable_is_filled_in(self):
        config = parse_config(MINIMAL.replace("localhost:9092", "${HOST}:${PORT:-9092}"), {"HOST": "broker"})
        assert config.kafka.bootstrap_servers == "broker:9092"

    def test_a_number_is_read_as_one_where_the_key_takes_a_number(self):
        config = parse("http: {port: '${PORT}'}\nlog:\n  level: ${LEVEL:-debug}\ntopics:\n  tombstones: ${T}\n",
                       PORT="0", T="false")  # fmt: skip
        assert (config.http.port, config.log.level, config.topics.tombstones) == (0, "debug", False)

    def test_digits_stay_text_where_the_key_takes_text(self):
        config = parse_config(
            MINIMAL.replace("kafka:", "  password: ${PASSWORD}\nkafka:"), {"PASSWORD": "0123"}
        )
        assert config.postgres.libpq().endswith("?password=0123")

    def test_null_is_null_where_the_key_may_be_null(self):
        assert parse("spool:\n  disk_bytes_max: ${MAX:-null}\n  directory: ${DIRECTORY:-}\n") == parse()

    def test_a_missing_variable_is_the_only_problem_of_its_key(self):
        text = MINIMAL.replace("postgresql://cdcd@", "postgresql://${USER_}@")
        assert problem(text) == (
            "line 3: postgres.dsn: needs the environment variable USER_, which is not set"
        )

    def test_a_variable_that_is_set_but_empty_takes_the_default(self):
        assert parse("topics: {prefix: '${PREFIX:-eu}'}", PREFIX="").topics.prefix == "eu"

    def test_a_doubled_dollar_stands_for_one(self):
        config = parse_config(MINIMAL.replace("kafka:", "  password: a$${b}$c\nkafka:"), {})
        assert config.postgres.password is not None
        assert config.postgres.password.get_secret_value() == "a${b}$c"

    @pytest.mark.parametrize("text", ["${", "${A B}", "${1}", "${A:-b"])
    def test_a_malformed_reference_is_refused(self, text):
        assert "has a ${ that is not ${NAME}" in problem(MINIMAL + f"http:\n  host: '{text}'\n")

    def test_a_bare_reference_in_flow_style_has_a_hint(self):
        with pytest.raises(ConfigError) as caught:
            parse("http: {port: ${PORT}}", PORT="1")
        assert "must be quoted" in caught.value.hint

    def test_a_value_from_a_variable_is_not_shown(self):
        text = problem(MINIMAL + "http: {port: '${PORT}'}", PORT="s3cret")
        assert text == "line 6: http.port: must be a whole number"


class TestEnvironment:
    def test_a_variable_wins_over_the_file(self):
        config = parse(
            "http: {port: 1}", CDCD_HTTP__PORT="2", CDCD_POSTGRES__DSN="host=db", CDCD_NAME="other"
        )
        assert config.http.port == 2
        assert config.postgres.libpq() == "host=db"
        assert config.postgres.slot == "cdcd_other"

    def test_lists_and_mappings_are_yaml(self):
        config = parse(
            CDCD_POSTGRES__TABLES='["a.*", "b.c"]', CDCD_TOPICS__CREATE__CONFIG="{retention.ms: 5}"
        )
        assert config.postgres.tables == ("a.*", "b.c")
        assert config.topics.create.config == {"retention.ms": "5"}

    def test_properties_are_named_with_underscores_for_dots(self):
        config = parse(CDCD_KAFKA__PROPERTIES__SASL_PASSWORD="0123")
        assert config.kafka.librdkafka()["sasl.password"] == "0123"

    def test_streaming_takes_its_words(self):
        assert parse(CDCD_POSTGRES__STREAMING="off").postgres.streaming == "off"

    def test_a_secret_wins_over_the_file_that_the_configuration_names(self, tmp_path):
        text = MINIMAL.replace("dsn: postgresql://cdcd@localhost:5432/shop", "dsn_file: /nonexistent")
        assert parse_config(text, {"CDCD_POSTGRES__DSN": "host=db"}).postgres.libpq() == "host=db"
        (tmp_path / "dsn").write_text("host=file")
        config = parse(CDCD_POSTGRES__DSN_FILE=f"{tmp_path}/dsn")
        assert config.postgres.libpq() == "host=file"

    def test_an_unknown_variable_names_the_near_key(self):
        assert problem(MINIMAL, CDCD_POSTGRES__SLTO="x") == (
            "environment CDCD_POSTGRES__SLTO: postgres.slto: unknown key; did you mean postgres.slot?"
        )

    def test_a_wrong_value_names_the_variable_and_is_not_shown(self):
        assert problem(MINIMAL, CDCD_HTTP__PORT="s3cret") == (
            "environment CDCD_HTTP__PORT: http.port: must be a whole number"
        )

    def test_what_kubernetes_sets_for_a_service_of_our_name_is_left_alone(self):
        assert (
            parse(CDCD_PORT="tcp://10.0.0.1:9464", CDCD_SERVICE_HOST="10.0.0.1", CDCD_CONFIG="x") == parse()
        )


class TestSecretFiles:
    def test_the_dsn_is_read_from_its_file_without_the_lines_end(self, tmp_path):
        (tmp_path / "dsn").write_text("postgresql://cdcd:s3cret@db/shop\r\n")
        text = MINIMAL.replace("dsn: postgresql://cdcd@localhost:5432/shop", f"dsn_file: {tmp_path}/dsn")
        assert parse_config(text, {}).postgres.libpq() == "postgresql://cdcd:s3cret@db/shop"

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "is empty"),
            (b"\n", "is empty"),
            (b"\xff", "is not UTF-8 text"),
            (b"a" * 1_048_577, "is larger than 1048576 bytes, too large for a secret"),
        ],
        ids=["empty", "blank", "binary", "large"],
    )
    def test_a_file_without_a_secret_is_refused(self, tmp_path, content, says):
        (tmp_path / "password").write_bytes(content)
        text = MINIMAL.replace("kafka:", f"  password_file: {tmp_path}/password\nkafka:")
        assert problem(text) == f"line 4: postgres.password_file: {tmp_path}/password {says}"

    def test_a_missing_file_is_the_only_problem(self):
        text = MINIMAL.replace("dsn: postgresql://cdcd@localhost:5432/shop", "dsn_file: /nonexistent")
        assert problem(text) == (
            "line 3: postgres.dsn_file: cannot read /nonexistent: No such file or directory"
        )

    def test_a_secret_and_its_file_together_are_refused(self, tmp_path):
        text = problem(MINIMAL.replace("dsn:", f"dsn_file: {tmp_path}\n  dsn:"))
        assert text == "line 3: postgres.dsn_file: and postgres.dsn are both given; give one of them"

    def test_a_wrong_dsn_in_a_file_is_not_shown(self, tmp_path):
        (tmp_path / "dsn").write_text("s3cret")
        text = MINIMAL.replace("dsn: postgresql://cdcd@localhost:5432/shop", f"dsn_file: {tmp_path}/dsn")
        assert problem(text).startswith("line 3: postgres.dsn: must be a libpq URI")
        assert "s3cret" not in problem(text)


class TestPassword:
    @pytest.mark.parametrize(
        ("dsn", "expected"),
        [
            ("postgresql://cdcd@db/shop", "postgresql://cdcd@db/shop?password=a%27b%20%2F%5Cc"),
            ("postgresql://db/?user=x", "postgresql://db/?user=x&password=a%27b%20%2F%5Cc"),
            ("host=db user=x", r"host=db user=x password='a\'b /\\c'"),
        ],
    )
    def test_it_is_added_to_either_form_of_dsn(self, dsn, expected):
        text = MINIMAL.replace("postgresql://cdcd@localhost:5432/shop", dsn)
        config = parse_config(text, {"CDCD_POSTGRES__PASSWORD": "a'b /\\c"})
        assert config.postgres.libpq() == expected

    def test_libpq_reads_it_back(self):
        conninfo = pytest.importorskip("psycopg.conninfo")
        for dsn in ("postgresql://cdcd:old@db/shop?user=x", "host=db password=old"):
            text = MINIMAL.replace("postgresql://cdcd@localhost:5432/shop", dsn)
            config = parse_config(text, {"CDCD_POSTGRES__PASSWORD": "a'b /\\c%&="})
            assert conninfo.conninfo_to_dict(config.postgres.libpq())["password"] == "a'b /\\c%&="


def test_no_secret_is_in_a_repr_or_a_dump(tmp_path):
    (tmp_path / "key").write_text("s3cret")
    config = parse_config(
        MINIMAL.replace("cdcd@", "cdcd:s3cret@")
        + "  properties: {sasl.password: s3cret, sasl.jaas.config: s3cret, client.id: a}\n"
        + f"  properties_files: {{ssl.key.password: {tmp_path}/key}}\n",
        {"CDCD_POSTGRES__PASSWORD": "s3cret"},
    )
    for shown in (repr(config), str(config), str(config.model_dump()), config.model_dump_json()):
        assert "s3cret" not in shown
    assert config.model_dump()["postgres"]["dsn"] == "postgresql://cdcd:***@localhost:5432/shop"
    assert config.model_dump()["kafka"]["properties"] == {
        "sasl.password": "***",
        "sasl.jaas.config": "***",
        "ssl.key.password": "***",
        "client.id": "a",
    }


@pytest.mark.parametrize(
    "text",
    [
        "postgres: postgresql://cdcd:s3cret@db/shop",
        "kafka: {properties: sasl.password=s3cret}",
        "kafka: {properties: {sasl.pasword: [s3cret]}}",
        "postgres: {pasword: s3cret}",
        "postgres: {password: [s3cret]}",
        "postgres: {dsn: [s3cret]}",
        "postgres: {dsn_file: 'postgresql://cdcd:s3cret@db/shop'}",
        "postgres: {password_file: 'password=s3cret'}",
        "kafka: {properties_files: {sasl.password: 'postgresql://cdcd:s3cret@db/shop'}}",
        "http: {host: 5, port: postgresql://cdcd:s3cret@db/shop}",
    ],
)
def test_no_secret_is_in_an_error_even_where_it_is_misplaced(text):
    assert "s3cret" not in "\n".join(problems(text))


def test_a_configuration_cannot_be_changed():
    config = parse()
    with pytest.raises(ValueError, match="frozen"):
        config.name = "other"


def anything() -> st.SearchStrategy[object]:
    scalars = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.dates()
        | st.binary(max_size=3)
        | st.text(max_size=5)
        | st.sampled_from(["${X}", "${", "s3cret", "postgresql://a:s3cret@b", "password=s3cret"])
    )
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    )


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*all_keys(), ("x",), ("postgres", "x")]), anything(), min_size=1, max_size=4
    )
)
def test_whatever_stands_in_the_file_it_is_a_configuration_or_one_error_without_secrets(values):
    data = yaml.safe_load(MINIMAL)
    for path, value in values.items():
        parent = data
        for part in path[:-1]:
            if not isinstance(parent.get(part), dict):
                parent[part] = {}
            parent = parent[part]
        parent[path[-1]] = value
    try:
        shown = effective_yaml(parse_config(yaml.safe_dump(data), {"X": "s3cret"}))
    except ConfigError as error:
        shown = str(error)
    assert "a:s3cret@b" not in shown


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_whatever_the_file_is_it_is_a_configuration_or_one_error(text):
    with pytest.raises(ConfigError):
        parse_config(text, {})


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["CDCD_" + "__".join(path).upper() for path in all_keys()] + ["CDCD_X__Y", "CDCD_", "CDCD__"]
        ),
        st.text(st.characters(exclude_characters="\0"), max_size=10),
        max_size=3,
    )
)
def test_whatever_stands_in_the_environment_it_is_a_configuration_or_one_error(environ):
    with contextlib.suppress(ConfigError):
        parse_config(MINIMAL, environ)
