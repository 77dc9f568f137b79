"""Whether Kafka's ACLs let a principal use a topic that does not exist yet.

Kafka tells the rights on a topic only if the topic exists. A principal with Describe on the cluster may read the ACLs.
They are evaluated as the broker does (StandardAuthorizerData.java): one DENY that matches is enough to refuse, and
without a DENY one ALLOW is enough. Hosts of ACLs are addresses as the broker sees them, which cdcd does not know. So an
ACL for a certain host makes the answer unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType

EVERYONE: Final = "User:*"
ANY: Final = "*"
"""Name of a resource, or host, in an ACL for all of them."""


@dataclass(frozen=True, slots=True)
class TopicAcls:
    """All ACLs about topics.

    Attributes:
        principal: name of this client for the broker.
        open_without: True if a topic without any ACL is open to everybody (`allow.everyone.if.no.acl.found`); None:
            unknown.
    """

    principal: str
    bindings: tuple[AclBinding, ...]
    open_without: bool | None

    def may_write(self, topic: str) -> bool | None:
        """Return whether the principal may write to the topic; None: unknown."""
        return self._allow(topic, AclOperation.WRITE)

    def may_read(self, topic: str) -> bool | None:
        """Return whether the principal may read the topic; None: unknown."""
        return self._allow(topic, AclOperation.READ)

    def _allow(self, topic: str, operation: AclOperation) -> bool | None:
        of_topic = [one for one in self.bindings if _is_about(one, topic)]
        if not of_topic:
            return self.open_without
        own = [
            one
            for one in of_topic
            if one.principal in {self.principal, EVERYONE} and one.operation in {operation, AclOperation.ALL}
        ]
        denied = _holds(one for one in own if one.permission_type == AclPermissionType.DENY)
        allowed = _holds(one for one in own if one.permission_type == AclPermissionType.ALLOW)
        if denied is True or allowed is False:
            return False
        return None if denied is None or allowed is None else True


def _is_about(binding: AclBinding, topic: str) -> bool:
    if binding.resource_pattern_type == ResourcePatternType.PREFIXED:
        return topic.startswith(binding.name)
    return binding.name in {topic, ANY}


def _holds(bindings: Iterable[AclBinding]) -> bool | None:
    """Return whether one of the ACLs holds for this host; None: unknown, because each is for a certain host."""
    hosts = [binding.host for binding in bindings]
    if ANY in hosts:
        return True
    return None if hosts else False
