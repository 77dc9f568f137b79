"""The login of Kafka's Java client in the names of librdkafka, so that a mirror states its login once.

Spark reads topics by the Java client, and cdcd looks at topics by librdkafka. The rule: a login is translated only if
both clients then log in as the same user and trust the same certificates. Otherwise the start ends with the key to set.

The names and defaults of the Java client are in Kafka's `SaslConfigs` and `SslConfigs`, those of librdkafka in its
CONFIGURATION.md.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from cdcd.core.errors import ConfigError

JAAS: Final = "sasl.jaas.config"

_LOGIN: Final = re.compile(
    r"\s*(?:\w+\.)?org\.apache\.kafka\.common\.security\.(?:plain\.Plain|scram\.Scram)LoginModule\s+\w+\s+(.*);\s*",
    re.DOTALL,
)
_PAIR: Final = re.compile(r"(\w+)\s*=\s*(?:\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'|([^\s;\"']+))\s*")
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
"""Letters behind a backslash, as Java's StreamTokenizer reads them."""

_TLS: Final = {
    "ssl.key.password": "ssl.key.password",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Java's properties that librdkafka has under another name, with the same values. Three have PEM as text."""

_UNLIKE: Final = (
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "security.providers",
    "ssl.engine.factory.class",
)
"""Properties that name classes of Java, which librdkafka cannot run."""

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def is_login(name: str) -> bool:
    """Return True if a property of either client belongs to a login."""
    return name == "security.protocol" or name.startswith(("sasl.", "ssl."))


def read_login(jaas: str) -> dict[str, str] | None:
    """Return the options of a login module for PLAIN or SCRAM by name. None: it is another module, or no module."""
    match = _LOGIN.fullmatch(jaas)
    if match is None:
        return None
    found, end = {}, 0
    for pair in _PAIR.finditer(match[1]):
        if pair.start() != end:
            return None
        name, double, single, bare = pair.groups()
        found[name] = bare or _ESCAPE.sub(_escaped, double or single or "")
        end = pair.end()
    return found if end == len(match[1]) else None


def _escaped(match: re.Match[str]) -> str:
    word = match[1]
    return chr(int(word, 8)) if word[0] in "01234567" else _ESCAPES.get(word, word)


def librdkafka_login(java: Mapping[str, str]) -> dict[str, str]:
    """Return the login among the properties of the Java client, in the names of librdkafka.

    Raises:
        ConfigError: librdkafka cannot have this login. The error names the property, and no value.
    """
    for name in _UNLIKE:
        if java.get(name):
            raise _unlike(f"{name} names a class of Java")
    protocol = java.get("security.protocol", "PLAINTEXT")
    given = {"security.protocol": protocol}
    if protocol.upper().startswith("SASL_"):
        given |= _sasl(java)
    if protocol.upper().endswith("SSL"):
        given |= _tls(java)
    return given


def librdkafka_properties(servers: str, java: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of the client that looks at topics. They hold secrets.

    Args:
        servers: brokers to begin with, host:port with commas between.
        java: properties of the Java client.
        own: properties in librdkafka's names. If none of them is a login, the login of `java` is added.

    Raises:
        ConfigError: as `librdkafka_login`.
    """
    login = {} if any(map(is_login, own)) else librdkafka_login(java)
    return {**login, **own, "bootstrap.servers": servers}


def _sasl(java: Mapping[str, str]) -> dict[str, str]:
    mechanism = java.get("sasl.mechanism", "GSSAPI")
    if mechanism not in _MECHANISMS:
        raise _unlike(f"sasl.mechanism is {mechanism}")
    if JAAS not in java:
        raise _unlike(f"{JAAS} is not set")
    login = read_login(java[JAAS]) or {}
    if "username" not in login or "password" not in login:
        raise _unlike(f"{JAAS} has no login module for PLAIN or SCRAM with username and password")
    if login.get("tokenauth", "false").lower() == "true":
        raise _unlike(f"{JAAS} has a delegation token (tokenauth)")
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": login["username"],
        "sasl.password": login["password"],
    }


def _tls(java: Mapping[str, str]) -> dict[str, str]:
    found = {ours: java[name] for name, ours in _TLS.items() if name in java}
    if "ssl.truststore.location" in java:
        if java.get("ssl.truststore.type", "JKS").upper() != "PEM":
            raise _unlike("ssl.truststore.type is not PEM")
        found["ssl.ca.location"] = java["ssl.truststore.location"]
    if "ssl.keystore.location" in java:
        kind = java.get("ssl.keystore.type", "JKS").upper()
        location = java["ssl.keystore.location"]
        if kind == "PEM":
            # Java's file has the key and the chain of certificates. librdkafka takes each of them from its file.
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
        elif kind == "PKCS12":
            found["ssl.keystore.location"] = location
            found["ssl.keystore.password"] = java.get("ssl.keystore.password", "")
        else:
            raise _unlike("ssl.keystore.type is neither PEM nor PKCS12")
    if "ssl.endpoint.identification.algorithm" in java:
        algorithm = java["ssl.endpoint.identification.algorithm"]
        found["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"
    return found


def _unlike(reason: str) -> ConfigError:
    return ConfigError(
        f"kafka.properties: {reason}, so the client that looks at topics (librdkafka) cannot log in the same way.",
        hint="Set kafka.client_properties to the same login in librdkafka's names (security.protocol, sasl.mechanism, "
        "sasl.username, sasl.password, ssl.ca.location). A job of one's own gives them to KafkaSource.",
    )
