"""Placeholders and secrets of a connector's configuration, as references of cdcd's.

Connect resolves `${provider:[path:]key}` by its config providers. cdcd has `${NAME}` from the environment, and files
that hold one secret each. A reference stays a reference: nothing is resolved, and a secret that is written out in the
connector's configuration becomes a variable that the operator sets.

    ${env:NAME}              ->  ${NAME}
    ${directory:/path:file}  ->  the file /path/file, where cdcd takes a file; else ${FILE}
    ${file:/path:a.b}        ->  ${A_B}
    ${file:/path:user}       ->  ${DATABASE_USER}, by the option: a shell has a USER of its own
    ${vault:path:a.b}        ->  ${A_B}, as for every other provider
"""

import re
from dataclasses import dataclass, field
from typing import Final

_TAKEN: Final = frozenset(
    {
        "EDITOR",
        "HOME",
        "HOSTNAME",
        "LANG",
        "LOGNAME",
        "MAIL",
        "PATH",
        "PWD",
        "SHELL",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    }
    | {
        "DATABASE",
        "HOST",
        "NAME",
        "PASS",
        "PASSWD",
        "PASSWORD",
        "PORT",
        "SECRET",
        "SSL",
        "TOKEN",
        "URL",
        "USERNAME",
    }
)
"""Variables that a login shell or a service manager sets (POSIX, 8.3), and words that any other program may mean. libpq
has those that begin with PG and LC_ begins those of the locale."""
_TAKEN_BEGINNINGS: Final = ("PG", "LC_", "KUBERNETES_")

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

    def replace(self, value: str, option: str = "") -> str:
        """Return the text with Connect's placeholders as `${NAME}`, and every other `${` escaped.

        Args:
            option: the connector's option that has the value. It names a variable whose own name is taken.
        """
        parts = []
        last = 0
        for match in _PLACEHOLDER.finditer(value):
            parts += [_escaped(value[last : match.start()]), self._variable(match, option)]
            last = match.end()
        return "".join([*parts, _escaped(value[last:])])

    def variable(self, key: str, meaning: str) -> str:
        """A reference for a value that the connector's configuration does not have."""
        return f"${{{self._name(key, meaning)}}}"

    def secret(self, option: str, value: str) -> str:
        """A reference for the value of a secret option."""
        if _PLACEHOLDER.fullmatch(value):
            return self.replace(value, option)
        name = self._name(option, f"the value of {option} in the connector's configuration")
        self.given[name] = value
        return f"${{{name}}}"

    def _variable(self, match: re.Match[str], option: str) -> str:
        provider, path, key = match.groups()
        if provider == "env":
            name = key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else self._name(key, f"variable {key}")
            self.variables[name] = f"as the worker's environment variable {key}"
            return f"${{{name}}}"
        where = f" of {path}" if path else ""
        meaning = f"{key}{where}, as the provider {provider} gives it to the worker"
        return f"${{{self._name(option if option and _is_taken(key) else key, meaning)}}}"

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


def _is_taken(key: str) -> bool:
    """Whether the environment may have a variable of this name that means something else."""
    name = key.upper()
    return name in _TAKEN or name.startswith(_TAKEN_BEGINNINGS)


def secret_file(value: str) -> str | None:
    """The file that holds nothing but the secret, if the value is a placeholder for one."""
    match = _PLACEHOLDER.fullmatch(value)
    return f"{match[2]}/{match[3]}" if match is not None and match[1] == "directory" and match[2] else None


def has_placeholder(value: str) -> bool:
    return _PLACEHOLDER.search(value) is not None


def _escaped(text: str) -> str:
    return text.replace("${", "$${")
