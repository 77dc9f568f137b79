"""The configuration shown: every key with its default and reason, the JSON schema, and what is in effect."""

import textwrap
from collections.abc import Iterator
from typing import Any, Final, get_args

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cdcd.config.defaults import default_template, section_of
from cdcd.config.models import Config
from cdcd.config.types import Section

_WIDTH: Final = 100
_HEAD: Final = """\
Every key of the configuration with its default. Made from the models by `cdcd config --reference`.

Any key can be set in the environment, and wins over the file: CDCD_POSTGRES__DSN is postgres.dsn,
CDCD_KAFKA__PROPERTIES__SASL_USERNAME is kafka.properties' sasl.username. In the file, ${NAME} and
${NAME:-default} are filled in from the environment; $${ stands for ${. Secrets can be in files:
postgres.dsn_file, postgres.password_file, kafka.properties_files, http.token_file, http.tokens_file,
http.read_token_file, columns.hash_key_file, columns.encryption_key_file."""
_EXAMPLE_NAME: Final = "shop"


def reference_yaml(model: type[Section] = Config, head: str = _HEAD) -> str:
    """`config/reference.yaml`: a file that loads, with a comment above every key. `head` stands above it."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    schema = model.model_json_schema()
    return "\n".join([*lines, *_section(model, schema, schema["$defs"], "")]) + "\n"


def _section(
    model: type[Section], schema: dict[str, Any], defs: dict[str, Any], indent: str
) -> Iterator[str]:
    for key, field in model.model_fields.items():
        yield ""
        inner = section_of(field)
        about = field.description or ""
        if inner is None:
            about += _values(schema["properties"][key]) + _default(field)
        for line in textwrap.wrap(about, _WIDTH - len(indent) - 2, break_on_hyphens=False):
            yield f"{indent}# {line}"
        if inner is None:
            yield f"{indent}{_pair(key, _shown_value(field))}"
        else:
            yield f"{indent}{key}:"
            yield from list(_section(inner, defs[inner.__name__], defs, indent + "  "))[1:]


def _values(schema: dict[str, Any]) -> str:
    """Which values the key takes, where the schema says it: a choice, or bounds."""
    schema = next((one for one in schema.get("anyOf", []) if one.get("type") != "null"), schema)
    if "enum" in schema:
        return f" One of {', '.join(str(value) for value in schema['enum'] if not isinstance(value, bool))}."
    if "minimum" in schema:
        return f" {schema['minimum']} to {schema['maximum']}."
    return ""


def _default(field: FieldInfo) -> str:
    template = default_template(field)
    if template is not None:
        return f" Default: {template.replace('{', '<').replace('}', '>')}."
    return " Required." if field.default is PydanticUndefined and field.default_factory is None else ""


def _shown_value(field: FieldInfo) -> object:
    template = default_template(field)
    if template is not None:
        # The directory for temporary files is another one elsewhere.
        return None if "{tmp}" in template else template.format(name=_EXAMPLE_NAME, prefix=_EXAMPLE_NAME)
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "example" in extra:
        return extra["example"]
    return field.get_default(call_default_factory=True)


def _pair(key: str, value: object) -> str:
    return yaml.safe_dump({key: value}, default_flow_style=False, width=1000).rstrip("\n")


def json_schema(model: type[Section] = Config) -> dict[str, Any]:
    """The schema of the file (`model`'s), for editors and for checking Helm values: what is derived or empty may be
    left out.
    """
    schema = model.model_json_schema()
    models: dict[str, type[Section]] = dict(_models(model))
    for name, part in [(model.__name__, schema), *schema["$defs"].items()]:
        fields = models[name].model_fields
        required = [key for key in part.get("required", []) if _must_be_given(fields[key])]
        part.pop("required", None)
        if name == "PostgresConfig":
            part["anyOf"] = [{"required": ["dsn"]}, {"required": ["dsn_file"]}]
        elif required:
            part["required"] = required
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "cdcd configuration",
    }


def _models(model: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    yield model.__name__, model
    for field in model.model_fields.values():
        # Of a mapping or of a list.
        values = get_args(field.annotation)
        for inner in (section_of(field), *values):
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from _models(inner)


def _must_be_given(field: FieldInfo) -> bool:
    inner = section_of(field)
    if inner is not None:
        return any(_must_be_given(one) for one in inner.model_fields.values())
    return field.is_required() and default_template(field) is None


def effective_yaml(config: Config) -> str:
    """What is in effect, after defaults, environment and files, with secrets masked."""
    return yaml.safe_dump(
        _loadable(config.model_dump(mode="json")), sort_keys=False, allow_unicode=True, width=1000
    )


def changed_yaml(config: Config) -> str:
    """YAML of the keys whose values differ from the defaults, with secrets masked. cdcd can load this YAML."""
    shown = _loadable(config.model_dump(mode="json"))
    kafka = {"bootstrap_servers": config.kafka.bootstrap_servers}
    usual = Config.model_validate(
        {
            "name": config.name,
            "kafka": kafka,
            "postgres": {"dsn": _ANY_DSN},
            "topics": {"prefix": config.topics.prefix},
        }
    ).model_dump(mode="json")
    changed = _differences(shown, usual)
    if config.topics.prefix != config.name:
        changed.setdefault("topics", {})["prefix"] = config.topics.prefix
    changed = {"name": config.name, **changed}
    changed["kafka"] = {**kafka, **changed.get("kafka", {})}
    ordered = {key: changed[key] for key in shown if key in changed}
    return yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=1000)


_ANY_DSN: Final = "host=/"
"""A DSN that no configuration has, so that the DSN of every configuration differs from it and is shown."""


def _differences(found: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """The keys of `found` that `usual` does not have, or has with another value. Mappings are compared key by key."""
    kept: dict[str, Any] = {}
    for key, value in found.items():
        other = usual.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _differences(value, other):
                kept[key] = inner
        elif value != other and not (value is None and key == "dsn"):
            kept[key] = value
    return kept


def _loadable(section: Any) -> Any:
    """The section without the secrets that come from a file or a command of it, which the loaded section has too.

    A file that gives both is refused, and what is printed should be a file that can be used.
    """
    if isinstance(section, list):
        return [_loadable(each) for each in section]
    if not isinstance(section, dict):
        return section
    found = {key: _loadable(value) for key, value in section.items()}
    for key, value in section.items():
        secret = key.removesuffix("_file").removesuffix("_command")
        if value and secret != key and found.get(secret) is not None:
            found[secret] = None
    files = section.get("properties_files")
    if files:
        found["properties"] = {k: value for k, value in found["properties"].items() if k not in files}
    return found
