"""The name by which a broker knows this client in its ACLs.

By password, the principal has the user's name. A certificate or a token has a name too, and the broker's settings say
what becomes of it (SslPrincipalMapper.java, OAuthBearerSaslServer.java). The rule: if the settings cannot be read, or
are others than Kafka's own mappings, the principal is unknown.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from cdcd.adapters.credentials.tokens import Tokens
from cdcd.core.errors import CdcdError

RULES: Final = "ssl.principal.mapping.rules"
CLAIM: Final = "sasl.oauthbearer.sub.claim.name"
HANDLER: Final = "sasl.server.callback.handler.class"
HANDLERS: Final = frozenset(
    {
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
    }
)
"""Kafka's own validators of tokens."""

_PLAIN: Final = re.compile(r"(?:CN|OU|O|L|ST|C|DC|UID)=[A-Za-z0-9 ._@-]+")
"""Attributes of a certificate's subject that Java writes in the same way as the library here."""

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The login that a client shows to the broker. All attributes are empty if the login is unknown.

    Attributes:
        user: name that belongs to a password.
        subject: subject of the certificate, as in RFC 2253.
        token: claim `sub` of the token.
    """

    user: str = ""
    subject: str = ""
    token: str = ""

    def principal(self, broker: Mapping[str, str] | None) -> str:
        """Return the principal; "" if it is unknown.

        Args:
            broker: settings of the broker; None: they cannot be read.
        """
        if self.user:
            return f"User:{self.user}"
        name = ""
        if broker is not None and self.token and _has_usual_claim(broker):
            name = self.token
        elif broker is not None and self.subject and not _of_listeners(broker, RULES):
            name = mapped(self.subject, broker.get(RULES, "DEFAULT"))
        return f"User:{name}" if name else ""


UNKNOWN: Final = ClientIdentity()


def identity_of(client: Mapping[str, object]) -> ClientIdentity:
    """Return the login of a client with these properties of librdkafka. The call may run the command for a token."""
    mechanism = str(client.get("sasl.mechanism", client.get("sasl.mechanisms", ""))).upper()
    protocol = str(client.get("security.protocol", "")).upper()
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM-"):
        return ClientIdentity(user=str(client.get("sasl.username") or ""))
    tokens = client.get("oauth_cb")
    if mechanism == "OAUTHBEARER" and isinstance(tokens, Tokens):
        try:
            value, _ = tokens("")
        except CdcdError:
            return UNKNOWN
        return ClientIdentity(token=subject_of_token(value))
    certificate = client.get("ssl.certificate.location")
    if protocol == "SSL" and isinstance(certificate, str):
        return ClientIdentity(subject=subject_of_certificate(Path(certificate)))
    return UNKNOWN


def subject_of_token(token: str) -> str:
    """Return the claim `sub` of a JSON web token; "" if the token has no such claim, or is no JSON web token."""
    try:
        _, payload, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        subject = claims["sub"]
    except (ValueError, KeyError, TypeError):
        return ""
    return subject if isinstance(subject, str) else ""


def subject_of_certificate(file: Path) -> str:
    """Return the subject of the first certificate in a PEM file; "" if Java may write it in another way."""
    try:
        subject = x509.load_pem_x509_certificates(file.read_bytes())[0].subject.rfc4514_string()
    except (OSError, ValueError):
        return ""
    return subject if all(map(_PLAIN.fullmatch, subject.split(","))) else ""


def mapped(subject: str, rules: str) -> str:
    """Return the name that the broker's rules make of a certificate's subject; "" if a rule cannot be followed."""
    at = 0
    while at < len(rules):
        rule = _RULE.match(rules, at)
        if rule is None:
            return ""
        at = rule.end()
        if rule[1]:
            return subject
        try:
            found = re.fullmatch(rule[2], subject)
            if found is None:
                continue
            # Java writes groups as $1.
            name = found.expand(re.sub(r"\$(\d)", r"\\g<\1>", rule[3]))
        except (re.error, IndexError):
            return ""
        return name.lower() if rule[4] == "L" else name.upper() if rule[4] == "U" else name
    return ""


def _has_usual_claim(broker: Mapping[str, str]) -> bool:
    claims = {broker.get(CLAIM, "sub"), *_of_listeners(broker, CLAIM)}
    handlers = {broker.get(HANDLER, ""), *_of_listeners(broker, HANDLER)} - {""}
    return claims == {"sub"} and handlers <= HANDLERS


def _of_listeners(broker: Mapping[str, str], name: str) -> list[str]:
    """Return the values of settings that only some listeners have."""
    return [
        value
        for key, value in broker.items()
        if key.startswith("listener.name.") and key.endswith(f".{name}")
    ]
