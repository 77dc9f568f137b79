from pathlib import Path

import pytest

from cdcd.config.keys import all_keys, dotted, field_at
from cdcd.config.mirror import MirrorConfig, load_mirror, mirror_reference, parse_mirror
from cdcd.core.errors import ConfigError

FILE = Path(__file__).parents[3] / "config" / "mirror" / "reference.yaml"
LEAST = "name: shop\nkafka: {bootstrap_servers: 'b:1'}\ntarget: {location: /lake}\n"


def test_the_example_is_what_the_models_say_and_loads():
    assert FILE.read_text() == mirror_reference(), (
        "stale: run `cdcd mirror --reference > config/mirror/reference.yaml`"
    )
    assert load_mirror(FILE, {}).target.format == "iceberg"


def test_little_is_enough():
    config = parse_mirror(LEAST, {})
    assert (config.topics.prefix, config.topics.schemas, config.topics.checkpoint) == (
        "shop",
        "shop.schemas",
        "shop.checkpoint",
    )
    assert config.stream_checkpoint() == "/lake/_cdcd/shop"


def test_topics_are_named_after_the_prefix_of_the_pipeline():
    topics = parse_mirror(LEAST + "topics: {prefix: eu.shop}\n", {}).topics
    assert (topics.schemas, topics.message) == ("eu.shop.schemas", "eu.shop.message")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("batches: {treads: 2}", "unknown key; did you mean batches.threads?"),
        ("batches: {threads: many}", "batches.threads: must be a whole number"),
        ("change_log: none", "Remove the line"),
        ("batches: {driver_writes: false}", "driver_writes has no effect any more"),
        ("schemas: x", "unknown key; did you mean topics.schemas?"),
        (
            "kafka: {bootstrap_servers: b:1, properties: {isolation.level: read_uncommitted}}",
            "is not for properties",
        ),
        ("tables: {include: [orders]}", "must be <schema>.<table>"),
        ("target: {format: hudi, location: x}", "must be iceberg or delta"),
        ("target: {catalog: lake}", "stream_checkpoint must say where"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(wrong: str, said: str):
    key = wrong.partition(":")[0]
    kept = [line for line in LEAST.splitlines() if not line.startswith(f"{key}:")]
    with pytest.raises(ConfigError) as caught:
        parse_mirror("\n".join([*kept, wrong]), {})
    assert said in caught.value.message
    assert "cdcd mirror --reference" in caught.value.hint


def test_the_token_for_reading_comes_from_a_file_and_is_not_shown(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef-token\n")
    http = parse_mirror(f"{LEAST}http: {{read_token_file: {file}}}\n", {}).http
    assert http.read_token is not None
    assert http.read_token.get_secret_value() == "0123456789abcdef-token"
    assert "0123456789abcdef-token" not in repr(http) + http.model_dump_json()
    file.write_text("short")
    with pytest.raises(ConfigError, match="must be 16 to 1000") as caught:
        parse_mirror(f"{LEAST}http: {{read_token_file: {file}}}\n", {})
    assert "short" not in caught.value.message
    file.unlink()
    with pytest.raises(ConfigError, match=r"http\.read_token_file: cannot read"):
        parse_mirror(f"{LEAST}http: {{read_token_file: {file}}}\n", {})


def test_secrets_come_from_the_environment_or_from_files_and_are_not_shown(tmp_path: Path):
    secret = tmp_path / "jaas"
    secret.write_text("s3cret\n")
    text = LEAST.replace(
        "'b:1'",
        f"'b:1', properties: {{ssl.key.password: '${{KEY}}'}}, properties_files: {{sasl.jaas.config: {secret}}}",
    )
    kafka = parse_mirror(text, {"KEY": "k3y"}).kafka
    assert kafka.java_client() == {"ssl.key.password": "k3y", "sasl.jaas.config": "s3cret"}
    assert "k3y" not in repr(kafka)
    secret.unlink()
    with pytest.raises(ConfigError, match=r"properties_files\.sasl\.jaas\.config: cannot read"):
        kafka.java_client()


def test_a_file_that_is_not_there_is_named_with_one_to_start_from(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        load_mirror(tmp_path / "none.yaml", {})
    assert "config/mirror/reference.yaml" in caught.value.hint


def test_tags_are_for_a_format_that_has_them():
    tagged = LEAST + "batches: {tag_interval_s: 60}\n"
    assert parse_mirror(tagged, {}).batches.tag_interval_s == 60
    with pytest.raises(ConfigError, match="Delta has no tags"):
        parse_mirror(tagged.replace("{location", "{format: delta, location"), {})


@pytest.mark.parametrize("path", list(all_keys(MirrorConfig)), ids=dotted)
def test_every_key_is_described(path: tuple[str, ...]):
    field = field_at(path, MirrorConfig)
    assert field is not None
    assert field.description


@pytest.mark.parametrize("file", sorted(FILE.parent.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_example_loads_and_says_where_the_streams_position_is(file: Path):
    environment = dict.fromkeys(("CATALOG_CLIENT_ID", "CATALOG_CLIENT_SECRET", "CATALOG_PASSWORD"), "x")
    config = load_mirror(file, environment)
    assert config.stream_checkpoint().startswith(("/", "s3a://", "hdfs://"))
    assert (config.target.location is None) == any(key.endswith(".type") for key in config.spark)


def test_the_configuration_of_a_pipeline_is_refused_by_name():
    with pytest.raises(ConfigError, match="is the configuration of a pipeline") as refused:
        parse_mirror((FILE.parents[1] / "minimal.yaml").read_text(), {"CDCD_PASSWORD": "x"}, "cdcd.yaml")
    assert "source" in refused.value.hint
