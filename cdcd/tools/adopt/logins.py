"""Logins and secrets of a connector: logins become keys of cdcd, secrets become references to variables or files."""

import re
from typing import Final

from cdcd.config.java_client import JAAS, read_login
from cdcd.tools.adopt.options import Option
from cdcd.tools.adopt.references import References, has_placeholder, secret_file
from cdcd.tools.adopt.rules import KERBEROS
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, lacks

USER_INFO: Final = "basic.auth.user.info"
"""Ends the name of the option that holds user and password for a schema registry."""

_KERBEROS_LOGIN: Final = "Krb5LoginModule"
_KERBEROS_PAIR: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|([^\s;]+))")

_HIDDEN: Final = "***"
"""Stands for the value of a secret where a rule asks whether there is one."""


def judge_secret(option: Option, name: str, value: str, references: References) -> Verdict:
    plain = option.judge(name, _HIDDEN)
    if not plain.keys:
        return plain
    (key,) = plain.keys
    file = secret_file(value)
    if file is not None and (
        key in ("postgres.password", "registry.token") or key.startswith("kafka.properties.")
    ):
        at = (
            key.replace("properties", "properties_files", 1)
            if key.startswith("kafka.properties.")
            else f"{key}_file"
        )
        return Verdict(VerdictKind.SAME, f"{at}.", {at: file})
    reference = references.secret(name, value)
    why = f"{key} is {reference}: set this variable for cdcd. The value is not written into the file."
    return Verdict(VerdictKind.SAME, why, {key: reference})


def judge_login(name: str, value: str, references: References) -> Verdict:
    """User and password of JAAS' modules for PLAIN and SCRAM."""
    if _KERBEROS_LOGIN in value:
        return _kerberos_login(value, references)
    pairs = read_login(value) or {}
    if "username" not in pairs or "password" not in pairs:
        return lacks(
            "Only the login modules for PLAIN and SCRAM can be read. Set sasl.mechanism and the like in "
            "kafka.properties, or kafka.oauth for tokens (docs/clouds.md)."
        )
    reference = references.secret(f"{name.removesuffix(JAAS)}sasl.password", pairs["password"])
    return Verdict(
        VerdictKind.SAME,
        f"sasl.username and sasl.password in kafka.properties; the password is {reference}: set this variable for "
        "cdcd.",
        {
            "kafka.properties.sasl.username": references.replace(pairs["username"], "sasl.username"),
            "kafka.properties.sasl.password": reference,
        },
    )


def _kerberos_login(value: str, references: References) -> Verdict:
    """The verdict on the JDK's module for Kerberos. Principal and key tab are not secrets."""
    given = {name.lower(): quoted or bare for name, quoted, bare in _KERBEROS_PAIR.findall(value)}
    keys = {
        f"kafka.properties.sasl.kerberos.{name}": references.replace(given[name], f"sasl.kerberos.{name}")
        for name in ("principal", "keytab")
        if name in given
    }
    return Verdict(VerdictKind.IMPOSSIBLE, KERBEROS, keys)


def judge_user_info(value: str, references: References) -> Verdict:
    """User and password for a schema registry, with a colon between them."""
    user, colon, password = value.partition(":")
    if not colon or (has_placeholder(value) and not has_placeholder(password)):
        return lacks("Set registry.user and registry.password_file: the value is not user:password.")
    # Keys and values have the same variable where they have the same password.
    others = {**references.given}
    reference = references.secret("registry.password", password)
    if any(others.get(variable, given) != given for variable, given in references.given.items()):
        references.given.update(others)
        return lacks("Keys and values have different passwords. cdcd has one login, and takes the first.")
    return Verdict(
        VerdictKind.SAME,
        f"registry.user and registry.password; the password is {reference}: set this variable for cdcd.",
        {"registry.user": references.replace(user, "registry.user"), "registry.password": reference},
    )
