"""The keys of `outbox`: events that an application publishes in the transaction that they tell of."""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from cdcd.config.types import KIB, Section, Text, TextForm, TopicName
from cdcd.core.catalog.routing import TOPIC_LENGTH_MAX, equivalent, parse_table
from cdcd.core.records.encoder import HEADER_PARTITION
from cdcd.core.records.shaping.json_records import JsonRecords
from cdcd.core.records.shaping.outbox import EVENT_ID, PAYLOAD
from cdcd.core.records.shaping.settings import SCHEMAS_MAX, TEXT, Outbox, OutboxTable

OutboxTableName = Annotated[
    str,
    TextForm(
        r"""[^\x00.*?"]+\.[^\x00.*?"]+""",
        "must be <schema>.<table>, without quotes, and with no point, * or ? in either part",
    ),
]
TopicTemplate = Annotated[
    str,
    TextForm(
        rf"([A-Za-z0-9._-]|\{{value\}}){{1,{TOPIC_LENGTH_MAX}}}",
        "may hold only ASCII letters, digits, '.', '_', '-' and {value}",
    ),
]


BEGIN: Final = re.compile(r"[A-Za-z0-9._-]*[A-Za-z0-9][A-Za-z0-9._-]*[._-]")
"""What a topic has before {value}, if rows may make topics of this form."""


class OutboxTableConfig(Section):
    """Which columns of an outbox table are which part of an event. The defaults are Debezium's."""

    topic: TopicTemplate = Field(
        "outbox.event.{value}",
        description="Topic of an event, which outbox.topics must have, unless topics_max allows more topics. {value} "
        "stands for the value of route_by.",
    )
    route_by: Text = Field("aggregatetype", description="Column whose value is put into topic.")
    event_id: Text | None = Field(
        "id", description="Column whose value is the header id of the record. null: there is no such header."
    )
    key: Text = Field("aggregateid", description="Column whose value is the key of the record.")
    payload: Text = Field(
        "payload",
        description="Column whose value is the value of the record, in the form of payload_form. NULL makes a "
        "tombstone.",
    )
    headers: dict[Text, Text] = Field(
        default_factory=dict, description="Further headers of the record: name to column."
    )

    envelope: dict[Text, Text] = Field(
        default_factory=dict,
        description="Fields beside the payload: name to column. With them, the value of the record is the JSON object "
        '{"payload": ..., "name": ...}, in which payload and fields have the form of their columns in the format '
        "json: a jsonb is a text in quotes. NULL is null.",
    )

    key_form: Literal["text", "avro"] = Field(
        TEXT,
        description="Form of the key. text: the text of the column, or the bytes of a bytea. avro: the value of the "
        "column in Avro, with its schema in the registry. It needs format.value: avro.",
    )
    payload_form: Literal["text", "avro", "avro_record"] = Field(
        TEXT,
        description="Form of the value. text: the text of the column, or the bytes of a bytea. avro: the value of the "
        "column in Avro, such as a string for jsonb. avro_record: the JSON of the column as a record in Avro, whose "
        "schema is derived from the JSON as table.expand.json.payload does it. Both need format.value: avro.",
    )
    null_fields: Literal["left_out", "bytes"] = Field(
        "left_out",
        description="What avro_record has for a field that is null. left_out: no field. bytes: a field of the type "
        "bytes that is null (table.json.payload.null.behavior: optional_bytes).",
    )
    empty_arrays: Literal["left_out", "strings"] = Field(
        "left_out",
        description="What avro_record has for a field that is an empty array. left_out: no field. strings: an empty "
        "array of strings (table.json.payload.empty.array.behavior: optional_string).",
    )
    topics_max: int = Field(
        0,
        ge=0,
        le=500,
        description="Largest number of topics that values of route_by make in the form of topic, besides those of "
        "outbox.topics. cdcd creates and claims such a topic before its first event, and the checkpoint names it. An "
        "event for one more topic is not published (outbox.refused), so that nobody who may insert rows fills the "
        "cluster. 0: events go only to topics of outbox.topics.",
    )
    schemas_max: int = Field(
        SCHEMAS_MAX,
        ge=1,
        le=10_000,
        description="Largest number of schemas of a subject in the registry. The JSON of the rows decides how many "
        "there are. An event with one more schema is not published (outbox.refused), so that nobody who may insert "
        "rows fills the registry.",
    )

    @model_validator(mode="after")
    def _forms_fit(self) -> Self:
        if self.envelope and self.payload_form != TEXT:
            raise ValueError(
                "envelope needs payload_form: text, because a value with fields beside the payload is JSON"
            )
        return self

    @model_validator(mode="after")
    def _makes_topics_of_a_form(self) -> Self:
        begin, value, _ = self.topic.partition("{value}")
        if self.topics_max and not (value and BEGIN.fullmatch(begin)):
            raise ValueError(
                "topics_max needs a topic with {value} behind a text of its own that ends with '.', '_' or '-', such "
                "as outbox.event.{value}, because rows would otherwise choose any topic of the cluster"
            )
        return self

    @model_validator(mode="after")
    def _headers_are_distinct(self) -> Self:
        if PAYLOAD in self.envelope:
            raise ValueError(f"envelope must not have {PAYLOAD}, which the column of payload makes")
        if self.event_id is not None and EVENT_ID in self.headers:
            raise ValueError(f"headers must not have {EVENT_ID}, which event_id makes; set event_id: null")
        if HEADER_PARTITION in self.headers:
            raise ValueError(f"headers must not have {HEADER_PARTITION}, which is cdcd's own")
        return self


class OutboxConfig(Section):
    """Events that an application publishes in the transaction that they tell of (docs/outbox.md)."""

    topics: Annotated[tuple[TopicName, ...], Field(strict=False)] = Field(
        default=(),
        description="The topics that events may go to. cdcd creates these topics at the start like its own. An event "
        "for "
        "another topic is not published, and the event outbox.refused names it.",
    )
    messages: bool = Field(
        False,
        description="Whether logical messages with the prefix cdcd.publish are published (PostgreSQL 14 and up). "
        "Every role that may connect to the database can send such a message.",
    )
    message_bytes_max: int = Field(
        700_000,
        ge=KIB,
        le=1_000_000_000,
        description="Largest content of such a message, in bytes. A larger one is refused and has no record, because a "
        "record that the broker refuses would end the daemon. Keep it below 0.7 of the topics' max.message.bytes.",
    )
    tables: dict[OutboxTableName, OutboxTableConfig] = Field(
        default_factory=dict,
        description="Outbox tables, <schema>.<table>: each row that is inserted is published. Updates and deletes of "
        "its rows have no record, and its rows are not part of the initial snapshot.",
    )

    @model_validator(mode="after")
    def _has_topics(self) -> Self:
        if not self.topics and (self.messages or any(not each.topics_max for each in self.tables.values())):
            raise ValueError("topics is empty: name the topics that events may go to")
        if len({equivalent(topic) for topic in self.topics}) < len(self.topics):
            raise ValueError("topics names a topic twice: for Kafka, '.' and '_' are the same character")
        for table, given in self.tables.items():
            form = re.escape(given.topic).replace(re.escape("{value}"), ".*")
            if not given.topics_max and not any(re.fullmatch(form, topic) for topic in self.topics):
                raise ValueError(
                    f"topics has no topic of the form {given.topic}, to which events of {table} go"
                )
        return self

    @property
    def by_table(self) -> dict[tuple[str, str], OutboxTable]:
        """`tables` by schema and name."""
        return {
            parse_table(table): OutboxTable(
                given.topic,
                given.route_by,
                given.event_id or "",
                given.key,
                given.payload,
                given.headers,
                given.envelope,
                given.key_form,
                given.payload_form,
                JsonRecords(given.null_fields == "bytes", given.empty_arrays == "strings"),
                given.schemas_max,
                given.topics_max,
            )
            for table, given in self.tables.items()
        }

    @property
    def settings(self) -> Outbox:
        """What the engine is given."""
        return Outbox(self.topics, self.messages, self.message_bytes_max, self.by_table)
