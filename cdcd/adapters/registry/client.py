"""Client of a schema registry with Confluent's API: registers and looks up schemas, and interprets the answers.

Every call blocks for `registry.timeout_s` at most. Redirects are not followed, because they would carry the login
to another host. Messages of the registry are shown with everything masked that may be a secret.

A registrar registers the schemas of a session in parallel with the event loop, and waits while the registry does
not answer.

The rule: the registry is never asked for a schema whose id is known. So while the registry does not answer, tables
with known schemas are delivered, even after a restart. Only a new schema waits, and everything behind it in the
stream. If the registry answers other requests, but for a while none for one schema, this schema counts as refused, so
that it holds up its own table only.
"""

import asyncio
import base64
import http.client
import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote

from cdcd.adapters.credentials.command import Command, output_of, without_secrets
from cdcd.adapters.credentials.requests import REDIRECTED, REDIRECTS, opener, reason
from cdcd.adapters.registry.glue import GlueRegistry
from cdcd.adapters.registry.oauth import ClientCredentials
from cdcd.config.models import Config
from cdcd.config.reloading import reread
from cdcd.config.sections.registry import GLUE, RegistryConfig
from cdcd.core import bounded_json
from cdcd.core.engine.reachability import Reachability
from cdcd.core.errors import CdcdError, ConfigError, RegistryUnavailableError, SinkError, TransientError
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import SchemaIdsForgotten, SchemaRegistered, SubjectUnanswered
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse, shown_id

CONTENT: Final = "application/vnd.schemaregistry.v1+json"
ANSWER_BYTES_MAX: Final = 8 << 20
PATIENCE_S: Final = 30.0
"""Seconds for which a registry that answers other requests may leave a schema without an answer, because the election
of a registry's leader takes some of them. Then the schema counts as refused."""

SAID_LENGTH_MAX: Final = 500
"""Maximum characters of the registry's message in an error."""

_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which a repeated request may succeed."""

_AFTER: Final = (
    "A table that is set aside then comes back by itself. If cdcd has ended (tables.on_error: stop), start it again; "
    "the slot keeps the changes."
)

_NOT_THERE: Final = 404
_CONFLICT: Final = 409
_UNPROCESSABLE: Final = 422
_DENIED: Final = (401, 403)


class Registry:
    """The registry of a configuration with `registry.url`.

    Every method raises:
        RegistryUnavailableError: the registry does not answer, or says that it cannot now.
        SinkError: the registry refuses.
        ConfigError: a certificate or a program of the configuration cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        settings = config.registry
        assert settings.url is not None, "the configuration needs a registry"
        self.url = settings.address
        self._set: set[str] = set()
        """Subjects whose compatibility has been set as configured."""
        # Only https needs the certificates; urllib takes no context for http.
        addresses = (self.url, settings.oauth.token_url or "")
        is_safe = any(each.startswith("https:") for each in addresses)
        self._opener = opener(_tls(settings) if is_safe else None)
        self._credentials = ClientCredentials(self._opener, settings.timeout_s)

    def register(self, use: SchemaUse) -> int:
        """Return the id of a schema. The schema is registered under its subject if that is allowed and necessary."""
        settings = self._config.registry
        subject = quote(use.subject, safe="")
        body = {"schema": use.text, "schemaType": use.kind}
        if settings.register_schemas:
            self._set_compatibility(use.subject, is_there=False)
            path = f"/subjects/{subject}/versions"
        else:
            path = f"/subjects/{subject}"
        try:
            answer = self._ask("POST", path, body)
        except _RefusedError as refused:
            raise _refusal(refused, use.subject, self.url, settings.register_schemas, use.kind) from None
        if settings.register_schemas:
            self._set_compatibility(use.subject, is_there=True)
        schema_id = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(schema_id, int) or not 0 <= schema_id < 1 << 31:
            raise SinkError(
                f"The registry at {self.url} did not answer with the id of a schema.",
                hint="Check that registry.url is the URL of a schema registry with Confluent's API.",
            )
        return schema_id

    def answers(self) -> bool:
        """Return True if the registry answers a request that concerns no subject."""
        try:
            self._ask("GET", "/schemas/types")
        except _RefusedError:
            return True
        except RegistryUnavailableError:
            return False
        return True

    def has(self, schema_id: int) -> bool:
        """Return True if the registry has a schema with this id."""
        try:
            self._ask("GET", f"/schemas/ids/{schema_id}")
        except _RefusedError as refused:
            if refused.status == _NOT_THERE:
                return False
            raise _refusal(refused, "", self.url, False) from None
        return True

    def mode(self) -> str:
        """Return the registry's mode: READWRITE, READONLY, …; "" if the registry does not report it."""
        try:
            answer = self._ask("GET", "/mode")
        except _RefusedError as refused:
            if refused.status == _NOT_THERE:
                return ""
            raise _refusal(refused, "", self.url, False) from None
        return str(answer.get("mode", "")) if isinstance(answer, dict) else ""

    def kinds(self) -> list[str]:
        """Return the schema types that the registry supports: AVRO, PROTOBUF, …; empty if it does not report them."""
        try:
            answer = self._ask("GET", "/schemas/types")
        except _RefusedError as refused:
            if refused.status == _NOT_THERE:
                return []
            raise _refusal(refused, "", self.url, False) from None
        return [str(each) for each in answer] if isinstance(answer, list) else []

    def subjects(self) -> int:
        """Return the number of subjects. The request also shows if the login is right."""
        try:
            answer = self._ask("GET", "/subjects")
        except _RefusedError as refused:
            raise _refusal(refused, "", self.url, False) from None
        if not isinstance(answer, list):
            raise SinkError(
                f"{self.url} does not answer as a schema registry does.",
                hint="Check that registry.url is the URL of a schema registry with Confluent's API.",
            )
        return len(answer)

    def _set_compatibility(self, subject: str, *, is_there: bool) -> None:
        """Set the compatibility of a subject, unless this was done before.

        `is_there`: True if the subject has a schema.

        Apicurio answers NONE for a subject without a schema with 404. The first schema is compatible in any case.
        """
        wanted = self._config.registry.compatibility
        if wanted is None or subject in self._set:
            return
        try:
            self._ask("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": wanted})
        except _RefusedError as refused:
            if refused.status == _NOT_THERE and not is_there:
                return
            raise _refusal(refused, subject, self.url, True) from None
        self._set.add(subject)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  http or https, as the configuration says
            f"{self.url}{path}", data=data, headers=self._headers(), method=method
        )
        try:
            with self._opener.open(request, timeout=self._config.registry.timeout_s) as answer:
                return bounded_json.parse(answer.read(ANSWER_BYTES_MAX), ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            with error:
                said = _said(error)
            if error.code in _LATER:
                raise self._away(f"HTTP {error.code}{said}") from None
            if error.code in _DENIED:
                self._credentials.forget()
            raise _RefusedError(error.code, said) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._away(reason(error)) from None
        except ValueError:
            raise _RefusedError(0, ": the answer is not JSON that cdcd reads") from None

    def _away(self, why: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"The schema registry at {self.url} does not answer: {why}",
            hint="Start the registry, or correct registry.url. Tables whose schemas are known go on until a new "
            "schema comes; then cdcd waits.",
        )

    def _headers(self) -> dict[str, str]:
        settings = reread(self._config).registry
        headers = {"Content-Type": CONTENT, "Accept": f"{CONTENT}, application/json"}
        try:
            if settings.user is not None:
                password = _secret(settings, "password")
                login = base64.b64encode(f"{settings.user}:{password}".encode()).decode()
                headers["Authorization"] = f"Basic {login}"
            elif settings.oauth.token_url is not None:
                headers["Authorization"] = f"Bearer {self._credentials.token(settings.oauth)}"
                if settings.oauth.logical_cluster is not None:
                    headers["target-sr-cluster"] = settings.oauth.logical_cluster
                if settings.oauth.identity_pool is not None:
                    headers["Confluent-Identity-Pool-Id"] = settings.oauth.identity_pool
            elif settings.token is not None or settings.token_command is not None:
                headers["Authorization"] = f"Bearer {_secret(settings, 'token')}"
        except TransientError as error:
            raise RegistryUnavailableError(error.message, hint=error.hint) from None
        return headers


class _RefusedError(Exception):
    """An HTTP answer with an error status. `said` is the registry's message after a colon, or empty."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"HTTP {status}{said}")
        self.status = status
        self.said = said


def _secret(settings: RegistryConfig, name: str) -> str:
    command = getattr(settings, f"{name}_command")
    if command is not None:
        return output_of(Command(f"registry.{name}_command", command, settings.timeout_s))
    text: str = getattr(settings, name).get_secret_value()
    return text


def _tls(settings: RegistryConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.certificate_file is not None and settings.key_file is not None:
            context.load_cert_chain(settings.certificate_file, settings.key_file, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"registry.ca_file, registry.certificate_file and registry.key_file cannot be used: {error}",
            hint="All must be PEM files that cdcd may read: certificates, and a key without a passphrase.",
        ) from None
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _said(error: urllib.error.HTTPError) -> str:
    try:
        answer = bounded_json.parse(error.read(ANSWER_BYTES_MAX), ANSWER_BYTES_MAX)
        text = str(answer.get("message", "")) if isinstance(answer, dict) else ""
    except (ValueError, OSError, http.client.HTTPException):
        return ""
    text = without_secrets(" ".join(text.split()))
    text = text if len(text) <= SAID_LENGTH_MAX else f"{text[:SAID_LENGTH_MAX]}…"
    return f": {text}" if text else ""


def _refusal(
    refused: _RefusedError, subject: str, url: str, registers: bool, kind: str = "AVRO"
) -> SinkError:
    about = f" for subject {subject}" if subject else ""
    if refused.status in _DENIED:
        hint = (
            "Correct registry.user and its password, or the token, and allow that user to read and register schemas "
            "of this pipeline's subjects."
        )
    elif refused.status in REDIRECTS:
        hint = REDIRECTED
    elif refused.status == _CONFLICT:
        hint = (
            f"The table's new form does not fit the compatibility of subject {subject}. Allow it (PUT {url}/config/"
            f'{subject} with {{"compatibility": "NONE"}}, or registry.compatibility: NONE). '
            f"{_AFTER}"
        )
    elif refused.status == _UNPROCESSABLE:
        hint = (
            f"If the registry takes no schemas of {kind} (GET {url}/schemas/types), use a registry that takes {kind}, "
            f"or another format.value. If it takes no new schemas (GET {url}/mode), PUT {url}/mode with "
            '{"mode": "READWRITE"}, or register the schemas by another way and set registry.register_schemas: false. '
            f"{_AFTER}"
        )
    elif refused.status == _NOT_THERE and subject and not registers:
        hint = (
            f"Register the table's schema under subject {subject}, or set registry.register_schemas: true. "
            f"{_AFTER}"
        )
    else:
        hint = "Check that registry.url is the URL of a schema registry with Confluent's API, and what its log says."
    return SinkError(
        f"The schema registry at {url} refuses{about} (HTTP {refused.status}){refused.said}", hint=hint
    )


def registry_of(config: Config) -> "Registry | GlueRegistry":
    """Return the client of the configuration's registry. ConfigError: its settings cannot be used."""
    return GlueRegistry(config) if config.registry.kind == GLUE else Registry(config)


class Registrar:
    """Registers schemas, and stores their ids in `ids`.

    Raises ConfigError if a certificate of the configuration cannot be used.
    """

    def __init__(
        self,
        config: Config,
        ids: SchemaIds,
        reach: Reachability,
        observe: Observer,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._registry = registry_of(config)
        self._ids = ids
        self._reach = reach
        self._observe = observe
        self._retry = config.kafka.retry.delays
        self._patience_s = patience_s
        self._unanswered: dict[SchemaUse, float] = {}
        """Schemas without an answer from a registry that answers other requests, and since when, in monotonic seconds.
        A schema that was refused stays here, so that the next attempt holds up the stream for one request only."""

    async def verify(self) -> None:
        """Remove ids that the registry no longer has. An unreachable registry is not awaited.

        Raises:
            SinkError: the registry refuses to answer.
        """
        newest = self._ids.newest()
        if newest is None:
            return
        try:
            known = await asyncio.to_thread(self._registry.has, newest)
        except RegistryUnavailableError:
            return
        if not known:
            self._observe(
                SchemaIdsForgotten(registry=self._registry.url, id=shown_id(newest), count=self._ids.forget())
            )

    async def ensure(self, uses: Collection[SchemaUse]) -> dict[SchemaUse, CdcdError]:
        """Register these schemas. Waits as long as the registry is unreachable.

        Returns:
            The schemas that the registry refuses, or to which it gives no answer while it answers other requests, each
            with the reason.
        """
        refused: dict[SchemaUse, CdcdError] = {}
        backoff = self._retry.backoff()
        while waiting := [use for use in uses if self._ids.get(use) is None and use not in refused]:
            for use in waiting:
                asked_at = time.monotonic()
                try:
                    schema_id = await asyncio.to_thread(self._registry.register, use)
                except RegistryUnavailableError as error:
                    now = time.monotonic()
                    if not await asyncio.to_thread(self._registry.answers):
                        # All schemas wait for the registry, so no schema is at fault.
                        self._unanswered.clear()
                        self._reach.failed(
                            "registry", error, asked_at=asked_at, patience_s=now - asked_at, now=now
                        )
                        break
                    self._reach.answered("registry", time.monotonic())
                    if use not in self._unanswered:
                        self._unanswered[use] = asked_at
                        self._observe(SubjectUnanswered(use.subject, error.message, self._patience_s))
                    if now - self._unanswered[use] >= self._patience_s:
                        refused[use] = _unanswered(error, use.subject)
                except SinkError as error:
                    self._unanswered.pop(use, None)
                    refused[use] = error
                else:
                    self._unanswered.pop(use, None)
                    self._ids.put(use, schema_id)
                    self._reach.answered("registry", time.monotonic())
                    self._observe(SchemaRegistered(subject=use.subject, id=shown_id(schema_id)))
            if any(self._ids.get(use) is None and use not in refused for use in waiting):
                await asyncio.sleep(backoff.next(random.random()))  # noqa: S311  spreads attempts, guards nothing
        self._reach.answered("registry", time.monotonic())
        return refused


def _unanswered(error: RegistryUnavailableError, subject: str) -> RegistryUnavailableError:
    return RegistryUnavailableError(
        f"{error.message}. It gives no answer for subject {subject}, but answers other requests",
        hint=f"See the registry's log for subject {subject}, and repair or delete the subject. The table comes back by "
        "itself.",
    )
