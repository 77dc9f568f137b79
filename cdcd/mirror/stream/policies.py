"""What a topic's `cleanup.policy` means for a mirror."""

from cdcd.mirror.watching.progress import TopicUnfit


def policy_problem(topic: str, policy: str, *, is_table: bool) -> TopicUnfit | None:
    """Judge a topic by its `cleanup.policy`. None: it keeps what the mirror needs, or the policy is unknown ("").

    Args:
        is_table: the topic has changes of a table. Otherwise it is the topic of descriptions.
    """
    alter = f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy="
    if is_table and "compact" in policy:
        return TopicUnfit(
            topic,
            "is compacted: changes that compaction removes before they are mirrored take values along that later"
            " updates did not send (unchanged TOAST); the mirror names such columns in _cdcd_unknown",
            f"{alter}delete, or give the table REPLICA IDENTITY FULL.",
        )
    if not is_table and policy not in {"", "compact"}:
        return TopicUnfit(
            topic,
            f"has cleanup.policy={policy}: Kafka deletes descriptions after some time, and then their records cannot "
            f"be mirrored",
            f"{alter}compact",
        )
    return None
