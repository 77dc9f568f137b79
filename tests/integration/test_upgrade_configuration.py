"""Configurations of commit 99c61843: each key still loads, or is refused by an error that names its replacement."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cdcd.config.loading import load_config
from cdcd.config.mirror import MirrorConfig, load_mirror
from cdcd.config.models import Config
from cdcd.core.errors import ConfigError
from tests.integration.former import Environment

pytestmark = pytest.mark.upgrade

REPLACED: Final[dict[str, str]] = {}
"""Keys that were removed since 99c61843, as `daemon.section.key`, with the replacement that the error must name."""

OTHER_DEFAULTS: Final = {
    # A pipeline with a checkpoint of 99c61843 still delivers messages (`messages.kept`).
    "daemon.postgres.messages": (True, None),
    "daemon.postgres.lease_s": (2.5, 5),
    "daemon.snapshot.added_tables": (False, None),
    "mirror.batches.interval_s": (5, 60),
}
"""Defaults that changed since 99c61843: the former and the new value. docs/upgrading.md names each of them."""

SCHEMAS: Final = """
import json, sys
from cdcd.config.mirror import MirrorConfig
from cdcd.config.models import Config
json.dump({"daemon": Config.model_json_schema(), "mirror": MirrorConfig.model_json_schema()}, sys.stdout)
"""

LIMITS: Final = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "minLength", "maxLength", "format",
)  # fmt: skip

Schema = dict[str, Any]


def forms(schema: Schema, root: Schema) -> list[Schema]:
    """Return the alternatives of a schema, with references resolved. A value must match at least one of them."""
    if "$ref" in schema:
        return forms(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    several = schema.get("anyOf") or schema.get("oneOf")
    return [schema] if several is None else [form for each in several for form in forms(each, root)]


def allowed(form: Schema) -> list[Any] | None:
    """Return the values that the schema permits, or None if it does not list them."""
    return [form["const"]] if "const" in form else form.get("enum")


def differences(
    old: Schema, new: Schema, roots: tuple[Schema, Schema], path: str
) -> Iterator[tuple[str, str]]:
    """Yield path and difference of each key that the new schema lacks or restricts, or that has another default."""
    now = forms(new, roots[1])
    for form in forms(old, roots[0]):
        like = [each for each in now if each.get("type") == form.get("type")]
        values = allowed(form)
        if "properties" in form:
            known = {name: part for each in like for name, part in each.get("properties", {}).items()}
            for name, part in form["properties"].items():
                if name in known:
                    yield from differences(part, known[name], roots, f"{path}.{name}")
                else:
                    yield f"{path}.{name}", "is gone"
        elif values is not None:
            is_free = any(allowed(each) is None for each in like)
            permitted = [value for each in now for value in allowed(each) or ()]
            if gone := [value for value in values if not is_free and value not in permitted]:
                yield path, f"no longer takes {gone}"
        elif not like:
            yield path, f"no longer takes {form}"
        else:
            for part in ("items", "additionalProperties"):
                if isinstance(form.get(part), dict):
                    yield from differences(form[part], like[0][part], roots, f"{path}[]")
            if not any(all(form.get(limit) == each.get(limit) for limit in LIMITS) for each in like):
                yield path, f"has other limits than {form}"
    if "default" in old and old["default"] != new.get("default"):
        yield path, f"has the default {new.get('default')!r}, not {old['default']!r}"


def test_each_key_value_and_limit_of_the_former_version_is_one_of_this_version(former: Environment):
    printed = subprocess.run([sys.executable, "-c", SCHEMAS], env=former, capture_output=True, check=True)
    old = json.loads(printed.stdout)
    new = {"daemon": Config.model_json_schema(), "mirror": MirrorConfig.model_json_schema()}
    found = {
        difference
        for name, schema in old.items()
        for difference in differences(schema, new[name], (schema, new[name]), name)
    }
    expected = {(key, "is gone") for key in REPLACED} | {
        (key, f"has the default {now!r}, not {before!r}") for key, (before, now) in OTHER_DEFAULTS.items()
    }
    assert found == expected


def test_defaults_that_changed_are_in_the_document():
    text = Path("docs/upgrading.md").read_text()
    for key in OTHER_DEFAULTS:
        assert f"`{key.partition('.')[2]}`" in text, key


def test_a_key_that_was_removed_is_refused_with_its_replacement(former: Environment):
    folder = Path(former["PYTHONPATH"]) / "config"
    files = {"daemon": folder / "reference.yaml", "mirror": folder / "mirror" / "reference.yaml"}
    loads = {"daemon": load_config, "mirror": load_mirror}
    for program, load in loads.items():
        replaced = {key: by for key, by in REPLACED.items() if key.startswith(f"{program}.")}
        if not replaced:
            load(files[program], {})
            continue
        with pytest.raises(ConfigError) as caught:
            load(files[program], {})
        for key, replacement in replaced.items():
            assert key.partition(".")[2] in str(caught.value)
            assert replacement in str(caught.value)


def test_the_configurations_that_came_with_the_former_version_load(former: Environment, tmp_path: Path):
    files = sorted((Path(former["PYTHONPATH"]) / "config").rglob("*.yaml"))
    assert len(files) > 10
    for file in files:
        text = file.read_text()
        for secret in re.findall(r"\$\{SECRETS[^}]*\}/([\w-]+)", text):
            (tmp_path / secret).write_text("k" * 40)
        variables = {
            name: "broker:9092" if "BOOTSTRAP" in name else "something"
            for name in re.findall(r"\$\{(\w+)", text)
        }
        load = load_mirror if file.parent.name == "mirror" else load_config
        load(file, {**variables, "SECRETS": str(tmp_path)})


def test_addresses_of_brokers_with_a_protocol_are_refused_with_the_right_form(tmp_path: Path):
    file = tmp_path / "cdcd.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "shop",
                "postgres": {"dsn": "postgresql://127.0.0.1/shop"},
                "kafka": {"bootstrap_servers": "PLAINTEXT://broker:9092"},
            }
        )
    )
    with pytest.raises(ConfigError, match=r"broker:9092.*security\.protocol"):
        load_config(file, {})
