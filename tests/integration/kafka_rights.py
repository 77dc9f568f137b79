"""Rights in Kafka that a test gives and takes, so that the broker goes by them when the test goes on.

As with topics (`created_topics.py`), the controller answers, and the broker's authorizer follows some milliseconds
later. The broker answers DescribeAcls from that authorizer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from deploy.local import KafkaBroker

PASSWORD: Final = "5asl-5ecret"
"""Of the user cdcd of a guarded broker."""

_WAIT_S: Final = 120.0

_ANYTHING: Final[Any] = None
"""Of a filter; its annotations have str alone."""


@contextmanager
def guarded_broker(folder: Path) -> Iterator[KafkaBroker]:
    """A broker that wants a password, and lets the user cdcd do only what an ACL allows."""
    server = KafkaBroker(folder, users={"cdcd": PASSWORD})
    server.start()
    yield server
    server.destroy()


def login(password: str = PASSWORD) -> dict[str, str]:
    """The client's properties for the user cdcd."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "cdcd",
        "sasl.password": password,
    }


def on_cluster(principal: str) -> list[AclBinding]:
    """The rights to read ACLs and the brokers' settings."""
    return [
        AclBinding(
            ResourceType.BROKER,
            "kafka-cluster",
            ResourcePatternType.LITERAL,
            principal,
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    ]


def told_of_topics(findings: Sequence[dict[str, Any]]) -> set[str]:
    """What `cdcd check` says about rights on topics that do not exist yet: codes of findings that are not ok."""
    return {one["code"] for one in findings if one["level"] != "ok" and one["subject"] == "topics"}


def allow(servers: str, bindings: Sequence[AclBinding]) -> None:
    """Create the bindings; returns when the broker goes by all of them."""
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_acls(list(bindings)).values():
        done.result(_WAIT_S)
    _await(admin, lambda known: known >= set(bindings))


def revoke(servers: str, binding: AclBinding) -> None:
    """Take the binding away, which must be there; returns when the broker does not go by it any more."""
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_acls([_that(binding)]).values():
        assert done.result(_WAIT_S)
    _await(admin, lambda known: binding not in known)


def _that(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


_ALL: Final = AclBindingFilter(
    ResourceType.ANY,
    _ANYTHING,
    ResourcePatternType.ANY,
    _ANYTHING,
    _ANYTHING,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


def _await(admin: AdminClient, is_so: Callable[[set[AclBinding]], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so(known := set(admin.describe_acls(_ALL, request_timeout=_WAIT_S).result(_WAIT_S))):
        assert time.monotonic() < deadline, f"the broker still goes by {known}"
