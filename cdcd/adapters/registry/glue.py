"""Client of AWS Glue's schema registry: the same verbs as `Registry` of `client.py`, by botocore.

A schema of Glue is what other registries call a subject, and its versions have UUIDs, which records name (`form.py`).
cdcd asks for the version with a text (GetSchemaByDefinition), registers it if there is none (RegisterSchemaVersion),
and creates a schema that is missing (CreateSchema). The credentials are those that botocore finds: variables, files,
a role of the machine. The tests run this client against moto's server. It has not been run against AWS itself.
"""

from typing import Any, Final
from uuid import UUID

from cdcd.adapters.credentials.command import without_secrets
from cdcd.adapters.credentials.requests import AbandonedError, Limit
from cdcd.config.models import Config
from cdcd.config.sections.registry import DEFAULT_REGISTRY
from cdcd.core.errors import ConfigError, RegistryUnavailableError, SinkError
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.extras import library

_NEED: Final = ("msk", "registry.kind: glue needs the library botocore")

SAID_LENGTH_MAX: Final = 500
"""Maximum characters of AWS's message in an error."""

_COMPATIBILITY: Final = {
    "BACKWARD_TRANSITIVE": "BACKWARD_ALL",
    "FORWARD_TRANSITIVE": "FORWARD_ALL",
    "FULL_TRANSITIVE": "FULL_ALL",
}
"""Compatibilities that have another name in Glue, with this name."""
_DEFAULT_COMPATIBILITY: Final = "BACKWARD"

_MISSING: Final = "EntityNotFoundException"
_EXISTS: Final = "AlreadyExistsException"
_LATER: Final = frozenset(
    {
        "ConcurrentModificationException",
        "InternalFailure",
        "InternalServiceException",
        "OperationTimeoutException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Codes of errors after which a repeated request may succeed, beside those with HTTP 500 and above."""
_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "OptInRequired",
        "UnrecognizedClientException",
    }
)
_SERVER_ERROR: Final = 500

_AVAILABLE: Final = "AVAILABLE"
_FAILURE: Final = "FAILURE"

_AFTER: Final = "A table that is set aside then comes back by itself."


class GlueRegistry:
    """The registry of a configuration with `registry.kind: glue`.

    Every method raises:
        RegistryUnavailableError: Glue does not answer, says that it cannot now, or there are no credentials.
        SinkError: Glue refuses.
    The constructor raises ConfigError if botocore is missing or refuses the settings.
    """

    def __init__(self, config: Config) -> None:
        settings = config.registry
        assert settings.url is not None, "the configuration needs a registry"
        self.url = settings.address
        self._settings = settings
        self._name = settings.glue.name
        # botocore's own timeouts limit the connection and each read, one after the other.
        self._limit = Limit(2 * settings.timeout_s)
        self._errors = library("botocore.exceptions", *_NEED)
        session, configs = library("botocore.session", *_NEED), library("botocore.config", *_NEED)
        limits = configs.Config(
            connect_timeout=settings.timeout_s, read_timeout=settings.timeout_s, retries={"max_attempts": 0}
        )
        try:
            self._client = session.get_session().create_client(
                "glue",
                endpoint_url=settings.url,
                region_name=settings.region,
                verify=None if settings.ca_file is None else str(settings.ca_file),
                config=limits,
            )
        except (self._errors.BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"registry.kind: glue: botocore refuses the settings: {self._said(str(error))}",
                hint="Correct registry.url, registry.glue.region, or the profile of AWS that the environment names.",
            ) from None

    def register(self, use: SchemaUse) -> int:
        """Return the UUID of a schema's version as a number. It is registered if that is allowed and necessary."""
        version = self._version(use)
        status = version.get("Status", version.get("SchemaVersionStatus"))
        if status == _FAILURE:
            raise SinkError(
                f"Glue's registry {self._name} refuses the schema {use.subject}: the new version does not fit the "
                "compatibility of the schema.",
                hint="Allow the new form: aws glue update-schema --schema-id "
                f"RegistryName={self._name},SchemaName={use.subject} --compatibility NONE "
                f"--schema-version-number LatestVersion=true. {_AFTER}",
            )
        if status != _AVAILABLE:
            raise self._away(f"the version of the schema {use.subject} has the status {status}")
        try:
            return UUID(version["SchemaVersionId"]).int
        except (KeyError, ValueError, TypeError, AttributeError):
            raise SinkError(
                f"{self.url} did not answer with the id of a schema's version.",
                hint="Check that registry.url is the address of AWS Glue, such as https://glue.REGION.amazonaws.com.",
            ) from None

    def answers(self) -> bool:
        """Return True if Glue answers a request that concerns no schema."""
        try:
            self.check()
        except SinkError:
            return True
        except RegistryUnavailableError:
            return False
        return True

    def check(self) -> None:
        """Ask Glue for the registry. The answer shows if the registry exists and if the credentials are right."""
        try:
            self._ask("get_registry", "", RegistryId={"RegistryName": self._name})
        except _MissingError:
            if self._name != DEFAULT_REGISTRY:
                raise

    def has(self, schema_id: int) -> bool:
        """Return True if Glue has a version of a schema with this UUID."""
        try:
            self._ask("get_schema_version", "", SchemaVersionId=str(UUID(int=schema_id)))
        except _MissingError:
            return False
        return True

    def _version(self, use: SchemaUse) -> Any:
        schema = {"RegistryName": self._name, "SchemaName": use.subject}
        text = {"SchemaDefinition": use.text}
        try:
            return self._ask("get_schema_by_definition", use.subject, SchemaId=schema, **text)
        except _MissingError:
            if not self._settings.register_schemas:
                raise
        try:
            return self._ask("register_schema_version", use.subject, SchemaId=schema, **text)
        except _MissingError:
            pass
        wanted = self._settings.compatibility or _DEFAULT_COMPATIBILITY
        # Glue makes the default registry with the first schema that is created without the name of a registry.
        place = {} if self._name == DEFAULT_REGISTRY else {"RegistryId": {"RegistryName": self._name}}
        try:
            return self._ask(
                "create_schema",
                use.subject,
                **place,
                SchemaName=use.subject,
                DataFormat=use.kind,
                Compatibility=_COMPATIBILITY.get(wanted, wanted),
                **text,
            )
        except _ExistsError:
            # Another instance has created it meanwhile.
            return self._ask("register_schema_version", use.subject, SchemaId=schema, **text)

    def _ask(self, operation: str, subject: str, **arguments: Any) -> Any:
        try:
            return self._limit.run(lambda: getattr(self._client, operation)(**arguments))
        except AbandonedError as error:
            raise self._away(str(error)) from None
        except self._errors.ClientError as error:
            raise self._refusal(error, operation, subject) from None
        except self._errors.ParamValidationError as error:
            raise self._refused(subject, self._said(str(error)), _NAME_HINT) from None
        except self._errors.BotoCoreError as error:
            raise self._away(self._said(str(error))) from None

    def _refusal(self, error: Any, operation: str, subject: str) -> SinkError | RegistryUnavailableError:
        answer = error.response
        code = str(answer.get("Error", {}).get("Code", ""))
        said = f"{code}: {self._said(str(answer.get('Error', {}).get('Message', '')))}"
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _LATER or status >= _SERVER_ERROR:
            return self._away(said)
        if code in _DENIED:
            action = "".join([part.capitalize() for part in operation.split("_")])
            return self._refused(
                subject,
                said,
                f"Allow the role of cdcd glue:{action}, glue:GetSchemaByDefinition, glue:RegisterSchemaVersion, "
                "glue:CreateSchema, glue:GetSchemaVersion and glue:GetRegistry, or give cdcd other credentials of AWS.",
            )
        if code == _MISSING:
            return _MissingError(self._words(subject, said), hint=self._missing_hint(subject))
        if code == _EXISTS:
            return _ExistsError(self._words(subject, said), hint=_AFTER)
        return self._refused(subject, said, _NAME_HINT)

    def _missing_hint(self, subject: str) -> str:
        if subject and not self._settings.register_schemas:
            return (
                f"Register the table's schema as the schema {subject} of the registry {self._name}, or set "
                f"registry.register_schemas: true. {_AFTER}"
            )
        return f"Create the registry: aws glue create-registry --registry-name {self._name}. {_AFTER}"

    def _words(self, subject: str, said: str) -> str:
        about = f" the schema {subject}" if subject else ""
        return f"Glue's registry {self._name} at {self._settings.url} refuses{about}: {said}"

    def _refused(self, subject: str, said: str, hint: str) -> SinkError:
        return SinkError(self._words(subject, said), hint=hint)

    def _away(self, why: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"Glue's registry {self._name} at {self._settings.url} does not answer: {why}",
            hint="Correct registry.url, give cdcd credentials of AWS, or wait. Tables whose schemas are known go on "
            "until a new schema comes; then cdcd waits.",
        )

    @staticmethod
    def _said(text: str) -> str:
        said = without_secrets(" ".join(text.split()))
        return said if len(said) <= SAID_LENGTH_MAX else f"{said[:SAID_LENGTH_MAX]}…"


_NAME_HINT: Final = (
    "Glue takes names of schemas with letters, digits and - _ $ # . and schemas of at most 170,000 characters. Rename "
    f"the topic, leave columns out (columns.exclude), or use another registry. {_AFTER}"
)


class _MissingError(SinkError):
    """Glue has no such registry, schema or version."""


class _ExistsError(SinkError):
    """Glue has such a schema already."""
