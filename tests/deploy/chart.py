"""The chart rendered, and what in it is made from the code: `python -m tests.deploy.chart` writes both again.

values.schema.json has the configuration's own schema in `$defs`; the golden renderings are for reading in a diff.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from cdcd.config.mirror import MirrorConfig
from cdcd.config.reference import json_schema
from deploy.local.cache import REPOSITORY, run
from tests.deploy.programs import program

CHART: Final = REPOSITORY / "helm" / "cdcd"
SCHEMA: Final = CHART / "values.schema.json"
GOLDEN: Final = Path(__file__).parent / "golden"
RELEASE: Final = "shop"

VARIANTS: Final = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())

KUBERNETES: Final = "1.37.0"

_OWN: Final = ("Labels", "Env", "Image")
"""The chart's own definitions; all others are the configuration's."""

_LOOKAHEAD: Final = re.compile(r"\(\?!(?:[^()\\]|\\.)*\)")


def values_schema() -> str:
    """values.schema.json as it should be."""
    schema = json.loads(SCHEMA.read_text())
    config = json_schema()
    config.pop("$schema")
    parts = config.pop("$defs")
    mirror = json_schema(MirrorConfig)
    mirror.pop("$schema")
    parts |= mirror.pop("$defs")
    own = {name: schema["$defs"][name] for name in _OWN}
    schema["$defs"] = own | {"Config": _for_go(config), "MirrorConfig": _for_go(mirror), **_for_go(parts)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _for_go(value: Any) -> Any:
    """The schema without what Helm's regular expressions lack, and without pydantic's titles."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if not (key == "title" and isinstance(one, str))}
        return {
            key: _LOOKAHEAD.sub("", one) if key == "pattern" else _for_go(one) for key, one in kept.items()
        }
    return [_for_go(one) for one in value] if isinstance(value, list) else value


def values_of(variant: str) -> Path:
    return CHART / "ci" / f"{variant}-values.yaml"


def render(*options: str | Path) -> str:
    """What `helm template` makes of the chart; LocalServerError with its words when it refuses."""
    command: list[str | Path] = [program("helm"), "template", RELEASE, CHART, "--kube-version", KUBERNETES]
    said = run([*command, "--namespace", "data", *options])
    return re.sub(r"[ \t]+$", "", said, flags=re.MULTILINE)


def objects(text: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of a rendering."""
    return [one for one in yaml.safe_load_all(text) if one is not None]


if __name__ == "__main__":
    SCHEMA.write_text(values_schema())
    for each in VARIANTS:
        (GOLDEN / f"{each}.yaml").write_text(render("--values", values_of(each)))
