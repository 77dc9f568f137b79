"""The public API of `import cdcd` as text: `python -m tests.public_api` writes `tests/public_api.txt` again.

The listing has every name of `cdcd.__all__` with what a program depends on: parameters with their annotations and
defaults, fields, properties, methods, bases, and the meaning of aliases. `tests/unit/test_public_api.py` fails when
the code says something else, so that a change of the API is a decision.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import cdcd

LISTING: Final = Path(__file__).with_suffix(".txt")

PROTOCOLS: Final = ("__aenter__", "__aexit__", "__aiter__", "__anext__", "__str__")
"""Methods with such names that a program uses."""

ALIASES: Final = ("Change", "Row", "Value")

PLACES: Final = re.compile(r"\b[a-z_.]+\.(?=[A-Za-z])")
"""The modules before the names of classes."""


def listing() -> str:
    """The whole API, one paragraph for each name."""
    return "\n".join("\n".join(described(name, getattr(cdcd, name))) + "\n" for name in cdcd.__all__)


def described(name: str, found: Any) -> Iterator[str]:
    """What a program depends on of one name."""
    if isinstance(found, FunctionType):
        yield from parameters(f"def {name}", inspect.signature(found))
    elif isinstance(found, type) and not hasattr(found, "__origin__"):
        bases = [base.__name__ for base in found.__bases__ if base is not object]
        yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
        yield from (f"    {line}" for line in members(found))
    else:
        yield f"{name} = {meaning(found)}"


def members(found: type) -> Iterator[str]:
    """Members, fields, properties and methods of a class, its own only."""
    if issubclass(found, Enum):
        yield from (f"{each.name} = {each.value!r}" for each in found)
    if dataclasses.is_dataclass(found):
        parameters_of = vars(found)["__dataclass_params__"]
        yield f"# dataclass: frozen={parameters_of.frozen}, eq={parameters_of.eq}"
        for each in dataclasses.fields(found):
            if not each.name.startswith("_"):
                default = "" if each.default is dataclasses.MISSING else f" = {each.default!r}"
                yield f"{each.name}: {annotation(each.type)}{default}"
    if issubclass(found, Exception):
        yield from (f"{key} = {value!r}" for key, value in vars(found).items() if key == "exit_code")
        if "__init__" in vars(found):
            yield from parameters("def __init__", inspect.signature(vars(found)["__init__"]))
    for name, member in sorted(vars(found).items()):
        if name.startswith("_") and name not in PROTOCOLS:
            continue
        if isinstance(member, property):
            assert member.fget is not None
            yield f"{name}: {annotation(inspect.signature(member.fget).return_annotation)}  # property"
        elif isinstance(member, FunctionType | classmethod):
            function = member.__func__ if isinstance(member, classmethod) else member
            kind = "async def" if inspect.iscoroutinefunction(function) else "def"
            yield from parameters(f"{kind} {name}", inspect.signature(function))


def parameters(head: str, signature: inspect.Signature) -> Iterator[str]:
    """A signature, each parameter on a line of its own."""
    yield f"{head}("
    star = False
    for each in signature.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            star = True
            yield "    *,"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        yield f"    {each.name}: {annotation(each.annotation)}{default},"
    yield f") -> {annotation(signature.return_annotation)}"


def annotation(found: Any) -> str:
    """An annotation with the public names of aliases and classes."""
    for name in ALIASES:
        if found is getattr(cdcd, name):
            return name
    return meaning(found)


def meaning(found: Any) -> str:
    """What an alias or an annotation consists of, without the places where its classes are defined."""
    text = found.__name__ if isinstance(found, type) and not hasattr(found, "__origin__") else str(found)
    for name in ALIASES:
        if found is not getattr(cdcd, name):
            text = text.replace(str(getattr(cdcd, name)), name)
    return PLACES.sub("", text).replace("NoneType", "None").replace("~E", "E")


if __name__ == "__main__":
    LISTING.write_text(listing())
