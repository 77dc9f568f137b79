"""Placeholders and secrets of a connector's configuration, as references of cdcd's.

Connect resolves `${provider:[path:]key}` by its config providers. cdcd has `${NAME}` from the environment, and files
that hold one secret each. A reference stays a reference: nothing is resolved, and a secret that is written out in the
connector's configuration becomes a variable that the operator sets.

    ${env:NAME}              ->  ${NAME}
    ${directory:/path:file}  ->  the file /path/file, where cdcd takes a file; else ${FILE}
    ${file:/path:a.b}        ->  ${A_B}
    ${vault:path:a.b}        ->  ${A_B}, as for every other provider
"""

import re
from dataclasses import dataclass, field
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\$\{([^}:]+):(?:([^}]*):)?([^}:]*)\}")


@dataclass(slots=True)
class References:
    """What the written file refers to.

    Attributes:
        variables: what each variable of the environment is to hold, in words that show no secret.
        given: secrets that the connector's configuration shows, by their variables. They are for this process alone.
    """

    variables: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict, repr=False)

    def replace(self, value: str) -> str:
        """The text with Connect's placeholders as `${NAME}`. A `${` that is none of them is escaped."""
        parts = []
        last = 0
        for match in _PLACEHOLDER.finditer(value):
            parts += [_escaped(value[last : match.start()]), self._variable(match)]
            last = match.end()
        return "".join([*parts, _escaped(value[last:])])

    def secret(self, option: str, value: str) -> str:
        """A reference for the value of a secret option."""
        if _PLACEHOLDER.fullmatch(value):
            return self.replace(value)
        name = self._name(option, f"the value of {option} in the connector's configuration")
        self.given[name] = value
        return f"${{{name}}}"

    def _variable(self, match: re.Match[str]) -> str:
        provider, path, key = match.groups()
        if provider == "env":
            name = key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else self._name(key, f"variable {key}")
            self.variables[name] = f"as the worker's environment variable {key}"
            return f"${{{name}}}"
        where = f" of {path}" if path else ""
        return f"${{{self._name(key, f'{key}{where}, as the provider {provider} gives it to the worker')}}}"

    def _name(self, key: str, meaning: str) -> str:
        """A variable for it; another one for each meaning."""
        base = re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_") or "SECRET"
        if base[0].isdigit():
            base = f"_{base}"
        name, number = base, 1
        while self.variables.get(name, meaning) != meaning:
            number += 1
            name = f"{base}_{number}"
        self.variables[name] = meaning
        return name


def secret_file(value: str) -> str | None:
    """The file that holds nothing but the secret, if the value is a placeholder for one."""
    match = _PLACEHOLDER.fullmatch(value)
    return f"{match[2]}/{match[3]}" if match is not None and match[1] == "directory" and match[2] else None


def has_placeholder(value: str) -> bool:
    return _PLACEHOLDER.search(value) is not None


def _escaped(text: str) -> str:
    return text.replace("${", "$${")
