"""The direction of imports, the purity of the core, and what documents say of both."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cdcd.core.snapshot.signals import RESERVED

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "cdcd").rglob("*.py"))
}

CODE = {module: path.read_text() for module, path in MODULES.items()}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(CODE[module])


# Who may import whom, besides itself. The package `cdcd` itself holds the version, which is open to all. A room is a
# folder of `cdcd`, or of one of the WINGS.
WINGS = ("core", "adapters", "tools")
PATH = (
    "core.errors",
    "build",
    "core.bounded_json",
    "core.facts",
    "core.retry",
    "core.visible",
    "core.table_names",
    "core.pasted",
    "core.pauses",
    "core.protocol",
    "core.transactions",
    "core.catalog",
    "core.records",
    "core.snapshot",
    "core.engine",
)
LAYERS = {layer: set(PATH[:index]) for index, layer in enumerate(PATH)}
LAYERS |= {alone: {"core.errors"} for alone in ("scratch", "extras")}
CORE = {*PATH, "scratch", "extras"}
LAYERS["config"] = CORE
# Where passwords and tokens come from that live for minutes: by the configuration, for PostgreSQL and Kafka.
LAYERS["adapters.credentials"] = {*CORE, "config"}
LAYERS |= {f"adapters.{one}": {*CORE, "adapters.credentials"} for one in ("postgres", "kafka")}
LAYERS["adapters.registry"] = {*CORE, "config", "adapters.credentials"}
LAYERS["adapters.recording"] = CORE
LAYERS["adapters.durable"] = {*CORE, "adapters.recording"}
ADAPTERS = {layer for layer in LAYERS if layer.startswith("adapters.")}
LAYERS["telemetry"] = {*CORE, "config", "adapters.credentials"}
LAYERS["daemon"] = {*CORE, "config", *ADAPTERS, "telemetry"}
LAYERS["stream"] = {*CORE, "adapters.postgres"}
LAYERS["tools.checks"] = {*LAYERS["daemon"], "daemon"}
LAYERS["tools.operations"] = {*LAYERS["tools.checks"], "tools.checks", "stream"}
LAYERS |= {
    f"tools.{one}": {*LAYERS["tools.operations"], "tools.operations"}
    for one in ("adopt", "verify", "handover")
}
LAYERS["tools.heal"] = {*LAYERS["tools.verify"], "tools.verify"}
LAYERS["cli"] = {*LAYERS["tools.adopt"], "tools.adopt", "tools.verify", "tools.heal", "tools.handover"}
# `import cdcd` passes on the names of the stream, when the first of them is used.
LAYERS[""] = {"stream"}
LAYERS["mirror"] = CORE
# The public name of the mirror's library.
LAYERS["spark"] = {"mirror"}
# The commands that bring in what the others do not need.
ALSO = {
    "cdcd.cli.mirror": {"mirror"},
    "cdcd.cli.mirror_forget": {"mirror"},
    "cdcd.cli.mirror_parts": {"mirror"},
    "cdcd.cli.verify": {"mirror"},
    "cdcd.mirror.watching.observed": {"telemetry"},
    "cdcd.mirror.watching.log_status": {"telemetry"},
    # Topics are looked at by the client of Kafka that the daemon has.
    "cdcd.mirror.base.job": {"adapters.kafka"},
    "cdcd.mirror.log.job": {"adapters.kafka"},
    "cdcd.mirror.log.positions": {"adapters.kafka"},
    "cdcd.mirror.api": {"adapters.kafka"},
    # That client and Spark's have one login, which the configuration translates for the library too.
    "cdcd.mirror.kafka": {"config"},
    # What reads tables, and not topics, is a client of PostgreSQL.
    "cdcd.mirror.snapshot.page_source": {"adapters.postgres"},
    "cdcd.mirror.base.load": {"adapters.postgres"},
    "cdcd.mirror.snapshot.reading": {"adapters.kafka", "adapters.postgres"},
    # What holds a mirror against its source tells it as `cdcd verify` does.
    "cdcd.mirror.verifying.mirror": {"adapters.kafka", "adapters.postgres", "telemetry", "tools.verify"},
    "cdcd.mirror.verifying.rows": {"tools.verify"},
    "cdcd.mirror.verifying.waiting": {"adapters.kafka", "tools.verify"},
}
PURE = set(PATH) - {"build"}
# mypyc's own library: buffers and machine integers for what is compiled.
PRIMITIVES = {"librt"}

# The packages that one place alone may know, by the beginning of that place's name.
CONFINED = {
    "psycopg": "cdcd.adapters.postgres",
    "confluent_kafka": "cdcd.adapters.kafka",
    "pydantic": "cdcd.config",
    "pyspark": "cdcd.mirror",
    "tornado": "cdcd.telemetry.tornado_server",
    "lz4": "cdcd.adapters.recording.blocks",
    "lark": "cdcd.config.expressions",
}
# Of libpq, its parser of connection strings: what masks a DSN must read it as libpq does.
KNOWN_ALSO = {"cdcd.config.masking": {"psycopg"}}
# What waits, logs, draws or looks at a clock.
IMPURE_MODULES = {
    "asyncio", "concurrent", "logging", "multiprocessing", "random", "secrets", "select", "signal", "socket",
    "subprocess", "threading", "time",
}  # fmt: skip
CLOCKS = {"now", "utcnow", "today"}


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Full names of what a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package]
            for alias in node.names:
                yield ".".join([*base, *([node.module] if node.module else []), alias.name])
        elif isinstance(node, ast.ImportFrom) and node.module in {
            "cdcd",
            *(f"cdcd.{wing}" for wing in WINGS),
        }:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module


def layer(module: str) -> str:
    """The room of a module, such as `core.engine`; a wing itself, which is empty, belongs to every room."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts and parts[0] in WINGS else parts[:1])


def offences(module: str, tree: ast.Module, is_package: bool = False) -> list[str]:
    """Every rule that a module of this name and code would break."""
    own = layer(module)
    found = []
    for name in imports(tree, module, is_package):
        top = name.split(".")[0]
        if top == "cdcd":
            other = layer(name)
            allowed = {own, *LAYERS.get(own, set()), *ALSO.get(module, set())}
            if other in LAYERS and other not in allowed:
                found.append(f"{own or 'cdcd'} imports {name}")
        elif top in CONFINED:
            if not module.startswith(CONFINED[top]) and top not in KNOWN_ALSO.get(module, set()):
                found.append(f"{top} belongs in {CONFINED[top]}")
        elif own in PURE and (top not in sys.stdlib_module_names | PRIMITIVES or top in IMPURE_MODULES):
            if name in named_by_types_only(tree):
                continue
            found.append(f"{own} is pure and imports {name}")
    if own in PURE:
        found += impurities(tree)
    return found


def named_by_types_only(tree: ast.Module) -> set[str]:
    """What is imported below `if TYPE_CHECKING:`, and so never when the program runs."""
    return {
        name
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for name in imports(statement, "", is_package=False)
    }


def impurities(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"line {node.lineno} awaits"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            yield f"line {node.lineno} reads a clock"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno} prints"


def test_the_engine_is_as_pure_as_what_it_decides_with():
    assert {
        f"core.{one}" for one in ("engine", "snapshot", "transactions", "catalog", "records", "protocol")
    } <= PURE
    assert LAYERS["core.engine"] <= PURE | {"build"}


def test_what_makes_records_is_known_by_its_interface_only():
    """`records/available.py` alone names formats: a further one is an entry there, with its settings' section."""
    own = (
        "cdcd.core.records.encoder",
        "cdcd.core.records.late_records",
        "cdcd.core.records.available",
        "cdcd.core.records.flattening",
        "cdcd.core.records.gaps",
        "cdcd.core.records.schemas",
        "cdcd.core.records.schema_registrations",
        "cdcd.core.records.markers",
    )
    shapes = "cdcd.core.records.shaping"
    found = {
        module: [
            name
            for name in imports(tree_of(module), module, is_package=False)
            if name.startswith("cdcd.core.records") and name not in own and not name.startswith(shapes)
        ]
        for module in MODULES
        if layer(module) in {"core.engine", "daemon", "tools.operations"} and module != "cdcd.daemon.settings"
    }
    assert len(found) > 50
    assert only_bad(found) == {}


def only_bad(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """The modules in which something was found."""
    return {module: offences for module, offences in found.items() if offences}


def offsets(tree: ast.AST) -> list[str]:
    """Where a frame is looked into at an offset that is written there as a number."""
    return [
        f"line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and "frame" in (getattr(node.value, "id", None), getattr(node.value, "attr", None))
        and any(isinstance(part, ast.Constant) for part in ast.walk(node.slice))
    ]


def test_offsets_and_layouts_of_frames_are_the_protocols():
    """What is read without decoding, `protocol/peek.py` reads, or names the offset of."""
    beyond = [name for name in MODULES if layer(name) not in {"core.protocol", ""}]
    assert only_bad({module: offsets(tree_of(module)) for module in beyond}) == {}


def test_an_offset_in_a_frame_is_found():
    code = "a = frame[25]\nb = step.frame[at + 1 : 9]\nc = frame[at]\nd = frame[at + SIZE_0]"
    assert offsets(ast.parse(code)) == ["line 1", "line 2"]


def test_every_pure_package_is_compiled():
    (assigned,) = [
        node.value
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "PACKAGES"
    ]
    compiled = {path.removeprefix("cdcd/") for path in ast.literal_eval(assigned)}
    # mypyc takes a dataclass's ClassVar with a value for a field with a default, and every fact has two of these.
    folders = {name.replace(".", "/") for name in PURE} - {"core/facts"}
    assert compiled == {name for name in folders if (ROOT / "cdcd" / name).is_dir()}


def test_a_name_for_an_error_has_one_type_in_compiled_code():
    """mypyc gives a name the type of its first `except`, and fails at the second one when it runs."""
    for module in MODULES:
        if layer(module) in PURE:
            for function in ast.walk(tree_of(module)):
                if isinstance(function, ast.FunctionDef):
                    assert not caught_twice(function), f"{module}.{function.name}"


def caught_twice(function: ast.FunctionDef) -> set[str]:
    """The names to which clauses of a function bind errors of different types."""
    types: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
            types.setdefault(node.name, set()).add(ast.unparse(node.type))
    return {name for name, found in types.items() if len(found) > 1}


def test_a_name_for_two_types_of_errors_is_found():
    code = "def f():\n try: pass\n except KeyError as e: pass\n except ValueError as e: pass\n"
    (function,) = ast.parse(code).body
    assert isinstance(function, ast.FunctionDef)
    assert caught_twice(function) == {"e"}


def test_imports_point_one_way_and_the_core_is_pure():
    found = {
        module: offences(module, tree_of(module), path.name == "__init__.py")
        for module, path in MODULES.items()
    }
    assert only_bad(found) == {}


def test_every_package_has_a_place_in_the_order():
    known = LAYERS.keys() | {"", *WINGS}
    assert {layer(module) for module in MODULES} <= known


CONSTRUCTOR_MAX = 7


def long_constructors(tree: ast.AST) -> list[str]:
    """The classes whose constructor takes more than it should, with the number of its parameters."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    given = method.args
                    count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                    if count > CONSTRUCTOR_MAX:
                        found.append(f"{node.name}: {count}")
    return found


def test_a_constructor_takes_at_most_seven_things():
    """Frozen messages, facts and settings are dataclasses. A class that needs more has a part that is a class."""
    judged = [name for name in MODULES if layer(name) != "mirror"]
    assert only_bad({module: long_constructors(tree_of(module)) for module in judged}) == {}


def test_a_long_constructor_is_found():
    code = "class A:\n def __init__(self, a, b, c, d, *, e, f, g, h): pass"
    assert long_constructors(ast.parse(code)) == ["A: 8"]


def test_no_module_is_a_drawer_for_odds_and_ends():
    assert not {"utils", "util", "common", "helpers", "misc"} & {path.stem for path in MODULES.values()}


@pytest.mark.parametrize(
    ("module", "source", "offence"),
    [
        (
            "cdcd.core.protocol.x",
            "from cdcd.core.catalog import y",
            "core.protocol imports cdcd.core.catalog",
        ),
        (
            "cdcd.core.protocol.x",
            "from cdcd.core import transactions",
            "core.protocol imports cdcd.core.transactions",
        ),
        (
            "cdcd.core.protocol.x",
            "from ..transactions import ledger",
            "core.protocol imports cdcd.core.transactions.ledger",
        ),
        (
            "cdcd.core.protocol.x",
            "def f():\n    import cdcd.adapters.kafka.sink",
            "core.protocol imports cdcd.adapters.kafka.sink",
        ),
        (
            "cdcd.adapters.kafka.x",
            "import cdcd.adapters.postgres.slot",
            "adapters.kafka imports cdcd.adapters.postgres.slot",
        ),
        (
            "cdcd.adapters.postgres.x",
            "import cdcd.adapters.kafka.sink",
            "adapters.postgres imports cdcd.adapters.kafka.sink",
        ),
        ("cdcd.daemon.x", "import cdcd.cli.run", "daemon imports cdcd.cli.run"),
        ("cdcd.cli.x", "import cdcd.mirror", "cli imports cdcd.mirror"),
        ("cdcd", "import cdcd.core.errors", "cdcd imports cdcd.core.errors"),
        ("cdcd.stream.x", "import cdcd.adapters.kafka.sink", "stream imports cdcd.adapters.kafka.sink"),
        ("cdcd.stream.x", "import cdcd.config.loading", "stream imports cdcd.config.loading"),
        (
            "cdcd.adapters.postgres.x",
            "from cdcd.stream import connect",
            "adapters.postgres imports cdcd.stream",
        ),
        ("cdcd.daemon.x", "from psycopg import sql", "psycopg belongs in cdcd.adapters.postgres"),
        ("cdcd.daemon.x", "import confluent_kafka", "confluent_kafka belongs in cdcd.adapters.kafka"),
        ("cdcd.daemon.pipeline", "import pydantic", "pydantic belongs in cdcd.config"),
        (
            "cdcd.core.catalog.x",
            "import cdcd.core.records.encoder",
            "core.catalog imports cdcd.core.records.encoder",
        ),
        ("cdcd.core.records.x", "import orjson", "core.records is pure and imports orjson"),
        (
            "cdcd.core.transactions.x",
            "from time import monotonic",
            "core.transactions is pure and imports time",
        ),
        (
            "cdcd.core.transactions.x",
            "import concurrent.futures",
            "core.transactions is pure and imports concurrent.futures",
        ),
        ("cdcd.core.catalog.x", "async def f(): ...", "line 1 awaits"),
        ("cdcd.core.catalog.x", "import datetime\ndatetime.datetime.now()", "line 2 reads a clock"),
    ],
)
def test_an_offence_is_found(module: str, source: str, offence: str):
    assert offences(module, ast.parse(source)) == [offence]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cdcd.core.catalog.x", "import json\nfrom cdcd.core.protocol.lsn import Lsn\nfrom . import types"),
        ("cdcd.core.catalog.x", "if TYPE_CHECKING:\n    from mypy_extensions import i64"),
        ("cdcd.config.loading", "import pydantic"),
        ("cdcd.config.reference", "import pydantic"),
        ("cdcd.cli.version", "from cdcd import __version__"),
        (
            "cdcd.daemon.pipeline",
            "import asyncio\nimport cdcd.adapters.kafka.sink\nimport cdcd.adapters.postgres.slot",
        ),
        ("cdcd.mirror.x", "import pyspark\nfrom cdcd.core.records import encoder"),
        ("cdcd.cli.mirror", "import cdcd.mirror.base.job"),
        ("cdcd", "from cdcd.stream import connect"),
        ("cdcd.stream.x", "import asyncio\nfrom cdcd.adapters.postgres import slot"),
    ],
)
def test_what_is_allowed_is_no_offence(module: str, source: str):
    assert offences(module, ast.parse(source)) == []


# What the documents say.

DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
MADE = {".venv", ".cache", "dist"}
"""Folders that a command makes."""


def named(text: str) -> set[str]:
    """Paths and names of files between backticks; `{a,b}` stands for both, `*` and `<…>` for anything."""
    found = set()
    for word in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        path = word.removeprefix("./")
        if (
            " " in path
            or not re.search(r"/|\.(py|md|toml|yaml|json|lock)$", path)
            or path.startswith(("$", "/", "@"))
        ):
            continue
        listed = re.search(r"\{([^}]*)\}", path)
        for each in listed[1].split(",") if listed else [""]:
            found.add(re.sub(r"<[^>]*>", "*", path.replace(listed[0], each) if listed else path))
    return found


def is_there(path: str) -> bool:
    """Whether a path leads somewhere from the root or from `cdcd/`, or a bare name is that of a module."""
    path = path.rstrip("/")
    if path.split("/")[0] in MADE:
        return True
    places = (ROOT, ROOT / "cdcd", ROOT / "tests")
    if "/" not in path:
        return any((place / path).exists() for place in places) or any((ROOT / "cdcd").rglob(path))
    return any(next(place.glob(path), None) is not None for place in places)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str):
    names = named((ROOT / document).read_text())
    assert len(names) > 10
    assert {name for name in names if not is_there(name)} == set()


def modules_named(text: str) -> set[str]:
    """Files of Python between backticks."""
    return set(re.findall(r"`([a-z_0-9/]+\.py)`", text))


def is_module(name: str) -> bool:
    """Whether a path ends at a module, from any folder of `cdcd` or from the root."""
    return any(f"/{path.relative_to(ROOT)}".endswith(f"/{name}") for path in MODULES.values()) or is_there(
        name
    )


def test_every_module_that_a_docstring_names_is_there():
    foreign = {"pyspark/java_gateway.py"}
    assert only_bad({
        module: sorted(name for name in modules_named(code) - foreign if not is_module(name))
        for module, code in CODE.items()
    }) == {}  # fmt: skip


def test_a_name_that_leads_nowhere_is_found():
    text = "`cdcd/core/engine/engine.py`, `engine/batches.py`, `deploy/{sql,nothing}`, `intake.py`, `tests/<kind>/`"
    assert {name for name in named(text) if not is_there(name)} == {
        "engine/batches.py",
        "deploy/nothing",
        "intake.py",
    }
    assert [
        name for name in ("core/retry.py", "engine/logged.py", "tests/conftest.py") if not is_module(name)
    ] == []
    assert not any(map(is_module, modules_named("as in `transactions/logged.py` and `ogged.py`")))


def test_the_code_map_has_every_package_and_says_which_are_pure():
    table = dict(
        re.findall(
            r"^\| `cdcd/([\w/]+)/` \| (yes|) ?\|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE
        )
    )
    rooms = {
        layer(module).replace(".", "/") for module, path in MODULES.items() if path.name == "__init__.py"
    }
    assert rooms - {"", "adapters", "tools"} == table.keys()
    folders = {name.replace(".", "/") for name in PURE if (ROOT / "cdcd" / name.replace(".", "/")).is_dir()}
    assert {name for name, pure in table.items() if pure} == folders | {"core"}


def test_the_stages_that_a_document_numbers_are_the_modules_that_say_so():
    """A name with (3) in the table of rooms: a module of that folder opens with this number."""
    claimed = []
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        folder = re.match(r"\| `(cdcd/[\w/]+)/`", line)
        if folder:
            claimed += [
                (folder[1], int(number))
                for number in re.findall(r"\d", " ".join(re.findall(r"\(([\d, ]+)\)", line)))
            ]
    opened = {
        (str(path.parent.relative_to(ROOT)), int(head[1]))
        for path in MODULES.values()
        if (head := re.match(r'r?"""Stage (\d)', path.read_text()))
    }
    inside = {(folder, number) for folder, number in claimed if not number_is_below(opened, folder, number)}
    assert inside == set()
    assert {number for _, number in claimed} == set(range(1, 10))


def number_is_below(opened: set[tuple[str, int]], folder: str, number: int) -> bool:
    return any(number == other and (at + "/").startswith(folder + "/") for at, other in opened)


# Names, commands and numbers.

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
KINDS_OF_FILES = {"py", "md", "toml", "yaml", "json", "lock"}


def backticked(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def identifiers(text: str) -> set[str]:
    """The names of code between backticks, each part of a dotted one by itself."""
    names = [word for word in backticked(text) if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", word)]
    return {part for name in names if name.split(".")[-1] not in KINDS_OF_FILES for part in name.split(".")}


def test_every_name_of_code_that_the_architecture_names_is_in_the_code():
    names = identifiers((ROOT / "ARCHITECTURE.md").read_text())
    assert {"Engine", "next_action", "STEPS", "PACKAGES"} <= names
    places = [*CODE.values(), (ROOT / "setup.py").read_text(), *map(str, ROOT.iterdir())]
    words = set(re.findall(r"\w+", "\n".join(places)))
    assert names - words == set()


def test_what_the_architecture_says_is_in_a_file_is_there():
    said = re.findall(r"`(\w+)` in `(?:cdcd/)?([\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert {"STEPS", "TRANSITIONS", "next_action"} <= {name for name, _ in said}
    for name, path in said:
        assert re.search(rf"^(    def )?{name}\b", (ROOT / "cdcd" / path).read_text(), re.MULTILINE), path


def test_the_stages_are_as_many_as_the_architecture_counts():
    assert "nine stages" in (ROOT / "ARCHITECTURE.md").read_text()
    numbers = {int(head[1]) for code in CODE.values() if (head := re.match(r'r?"""Stage (\d)', code))}
    assert len(numbers) == 9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path):
    text = page.read_text()
    made = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {path.stem for path in (ROOT / "cdcd" / "cli").glob("*.py")}
    assert {word.split()[1] for word in backticked(text) if re.match(r"make \w", word)} <= made
    named = {word.split()[1] for word in backticked(text) if re.match(r"cdcd [a-z]+( |$)", word)}
    assert named <= commands


def test_every_stamp_that_the_makefile_asks_for_has_a_rule():
    """`make -n` of all targets would run the targets that call make themselves, so the rules are compared as texts."""
    rules = re.findall(r"^([^\s#][^:=\n]*):(?!=)(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = {target for targets, _ in rules for target in targets.split()}
    asked = {
        word
        for _, needed in rules
        for word in needed.split()
        if re.match(r"(\.venv|build)/[\w/-]*stamp", word)
    }
    assert ".venv/stamp-spark" in asked
    assert asked <= made


def test_every_event_that_the_page_on_snapshots_names_is_a_fact_or_a_key():
    """`a.b` between backticks is an event of the log, or a key of the configuration."""
    words = backticked((ROOT / "docs" / "snapshots.md").read_text())
    dotted = {word.split(":")[0] for word in words if re.match(r"[a-z]+\.[a-z_]+(:|$)", word)}
    events = set(re.findall(r"^\| `([a-z.]+)` \|", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE))
    keys: set[str] = set()
    section = ""
    for line in (ROOT / "config" / "reference.yaml").read_text().splitlines():
        if top := re.match(r"#? ?(\w+):", line):
            section = top[1]
        elif key := re.match(r"#? {2,3}#? ?(\w+):", line):
            keys.add(f"{section}.{key[1]}")
    others = {*RESERVED, "source.snapshot", "source.txId", "snapshot.lsn"}
    assert {"snapshot.refused", "table.replaced", "snapshot.signals"} <= dotted
    assert dotted - events - keys - others == set()


def literal_expressions(tree: ast.AST) -> list[str]:
    """Return texts with an expression in braces, such as `{log.folder}`, that no f-string replaces.

    JavaScript's own expressions begin with a dollar sign.
    """
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
    ]
    expression = r"(?<!\$)\{(?:[A-Za-z_]\w*(?:\.\w+|\([^{}]*\))+|'[^{}]*'\.join\([^{}]*\))\}"
    return [text for text in texts if re.search(expression, text)]


def test_no_text_shows_an_expression_instead_of_its_value():
    assert only_bad({module: literal_expressions(tree_of(module)) for module in MODULES}) == {}


def test_an_expression_that_is_shown_is_found():
    found = ast.parse("hint = 'move ' '{log.folder} away'")
    assert literal_expressions(found) == ["move {log.folder} away"]
    replaced = ast.parse("hint = f'move {log.folder} away, {{}}' + '{folder}'")
    assert literal_expressions(replaced) == []
