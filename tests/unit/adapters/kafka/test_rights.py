"""What ACLs say about a topic that does not exist yet, as the broker's authorizer would."""

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from cdcd.adapters.kafka.rights import TopicAcls

CDCD, WRITE = "User:cdcd", AclOperation.WRITE
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


def acl(
    name: str,
    operation: AclOperation = WRITE,
    *,
    pattern: ResourcePatternType = LITERAL,
    principal: str = CDCD,
    host: str = "*",
    permission: AclPermissionType = ALLOW,
) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, name, pattern, principal, host, operation, permission)


@pytest.mark.parametrize(
    ("bindings", "may"),
    [
        ([acl("shop.t")], True),
        ([acl("*")], True),
        ([acl("shop.", pattern=PREFIXED)], True),
        ([acl("shop.t", AclOperation.ALL)], True),
        ([acl("shop.t", principal="User:*")], True),
        # A literal name is no prefix, and no other operation implies Write.
        ([acl("shop.t"), acl("shop.", permission=DENY)], True),
        ([acl("shop.")], None),
        ([acl("shop.t", AclOperation.CREATE)], False),
        ([acl("shop.t", AclOperation.DESCRIBE)], False),
        ([acl("shop.t", principal="User:other")], False),
        ([acl("shop.t"), acl("sh", pattern=PREFIXED, permission=DENY)], False),
        ([acl("shop.t"), acl("*", AclOperation.ALL, principal="User:*", permission=DENY)], False),
        # cdcd does not know the address under which the broker sees it.
        ([acl("shop.t", host="10.0.0.1")], None),
        ([acl("shop.t"), acl("shop.t", host="10.0.0.1", permission=DENY)], None),
        ([acl("shop.t", host="10.0.0.1"), acl("shop.t")], True),
    ],
)
def test_an_acl_decides_as_the_brokers_authorizer(bindings: list[AclBinding], may: bool | None):
    assert TopicAcls(CDCD, tuple(bindings), None).may_write("shop.t") is may


@pytest.mark.parametrize("open_without", [True, False, None])
def test_without_an_acl_of_the_topic_the_brokers_setting_decides(open_without: bool | None):
    assert TopicAcls(CDCD, (acl("other"),), open_without).may_read("shop.t") is open_without
