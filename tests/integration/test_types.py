"""Every type's values through a real server: what PostgreSQL sends for them, and the JSON that must come of it.

The expected JSON is written by hand, after Debezium's rules (`core/records/debezium_json/converters.py`). Each value
goes the way of the text and, from 14 on, of the binary form. Types whose binary form says too little are found when a
table is described.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from struct import pack, unpack

import psycopg
import pytest

from cdcd.adapters.postgres import catalog
from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.core.catalog.logical import unreadable_binary
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES, READERS
from cdcd.core.errors import WithoutBinaryError
from cdcd.core.protocol.messages import Insert, Relation
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record

pytestmark = pytest.mark.postgres(every=True)

PINNED = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c bytea_output=hex -c extra_float_digits=1"
    " -c lc_monetary=C"
)

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'so "so"', 'happy');
CREATE DOMAIN age AS int CHECK (VALUE >= 0);
CREATE DOMAIN old_age AS age CHECK (VALUE >= 70);
CREATE DOMAIN price AS numeric(10, 2);
CREATE DOMAIN at_ms AS timestamp(3);
CREATE DOMAIN ages AS age[];
CREATE TYPE address AS (street text, number int);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TYPE regrange AS RANGE (subtype = regtype);
CREATE TYPE registered AS (what regtype, number int);
CREATE TYPE words AS RANGE (subtype = text);
CREATE DOMAIN home AS address;
CREATE TABLE composed (a int, gone text, b text);
ALTER TABLE composed DROP gone;
CREATE SCHEMA extra;
CREATE EXTENSION hstore SCHEMA extra;
CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE EXTENSION cube;
CREATE EXTENSION seg;
CREATE EXTENSION isn;
CREATE EXTENSION lo;
CREATE TYPE everything AS (
    b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, m money, t text, c "char", na name, by bytea,
    d date, ti time, tz timetz, ts timestamp, tt timestamptz, iv interval, u uuid, j json, jb jsonb, x xml, bi bit(3),
    vb varbit, i inet, ci cidr, ma macaddr, m8 macaddr8, p point, l lseg, pa path, bo box, po polygon, li line,
    cr circle, v tsvector, q tsquery, jp jsonpath, ls pg_lsn, x8 xid8, xi xid, o oid, td tid, sn txid_snapshot,
    r int4range, w words, mo mood, ag old_age, pr price, ad address, h home, aa address[], ia int4[], ta text[],
    bx box[], hs extra.hstore, ct citext, lt ltree, cu cube, iv2 int2vector, ov oidvector);
"""


@dataclass(frozen=True)
class Case:
    """A value of a column's type and its JSON; `binary`: its binary form can be read, or is not sent."""

    type: str
    value: str
    json: str
    since: int = 13
    binary: bool = True


def cases(lines: str, *, binary: bool = True, since: int = 13) -> list[Case]:
    """Lines `type | SQL of the value | JSON`; `#` opens a comment."""
    texts = [line.strip() for line in lines.split("\n")]
    split = [text.split(" | ") for text in texts if text and not text.startswith("#")]
    return [Case(kind, value, json, since, binary) for kind, value, json in split]


CASES = [
    Case("text", "repeat('x', 300) || '\"'", f'"{"x" * 300}\\""'),
    Case("text", "repeat('ä', 300)", f'"{"ä" * 300}"'),
    Case("text", "'ÄÖ 日本語 🐘' || chr(8232) || chr(127)", '"ÄÖ 日本語 🐘\u2028\x7f"'),
    Case("text", "repeat('long ', 20000)", f'"{"long " * 20000}"'),
    *cases(
        r"""
        bool | true | true
        bool | false | false
        bool | NULL | null
        int2 | -32768 | -32768
        int2 | 32767 | 32767
        int4 | -2147483648 | -2147483648
        int4 | 0 | 0
        int8 | -9223372036854775808 | -9223372036854775808
        int8 | 9223372036854775807 | 9223372036854775807
        oid | 4294967295 | 4294967295
        float4 | 3.3 | 3.3
        float4 | 3 | 3.0
        float4 | 'NaN' | "NaN"
        float4 | '-Infinity' | "-Infinity"
        float4 | 1e20 | 1e+20
        float4 | 123456 | 123456.0
        float4 | 1234567 | 1.234567e+06
        float4 | 0.0001 | 0.0001
        float4 | 0.00001 | 1e-05
        float4 | 1.1754944e-38 | 1.1754944e-38
        float4 | 1e-45 | 1e-45
        float4 | 16777216 | 1.6777216e+07
        float8 | 4.44 | 4.44
        float8 | -4 | -4.0
        float8 | '-0' | -0.0
        float8 | 0 | 0.0
        float8 | 'NaN' | "NaN"
        float8 | 'Infinity' | "Infinity"
        float8 | 0.1::float8 + 0.2 | 0.30000000000000004
        float8 | 1e15 | 1e+15
        float8 | 123456789012345 | 123456789012345.0
        float8 | 1234567890123456 | 1.234567890123456e+15
        float8 | 5e-324 | 5e-324
        float8 | 1.7976931348623157e308 | 1.7976931348623157e+308
        float8 | 12.5 | 12.5
        float8 | 100 | 100.0
        numeric | 1.10 | "1.10"
        numeric | 0 | "0"
        numeric | 'NaN' | "NAN"
        numeric | -0.000000000000000000001 | "-0.000000000000000000001"
        numeric | 12345678901234567890.12345678901234567890 | "12345678901234567890.12345678901234567890"
        numeric | 10000 | "10000"
        numeric | 100000000 | "100000000"
        numeric | 0.00012 | "0.00012"
        numeric(10,2) | 7 | "7.00"
        numeric(6,3) | -1.5 | "-1.500"
        money | 1234.11 | "1234.11"
        money | -1234567.5 | "-1234567.50"
        money | 0 | "0.00"
        text | 'some text' | "some text"
        text | '' | ""
        text | E'"\\\\ \b\f\n\r\t\x01\x1f' | "\"\\\\ \b\f\n\r\t\u0001\u001f"
        varchar(5) | 'abc' | "abc"
        char(5) | 'abc' | "abc  "
        name | 'abc' | "abc"
        "char" | 'a' | "a"
        "char" | '' | ""
        xml | '<a b="c"/>' | "<a b=\"c\"/>"
        json | '{"a":  [1, null]}' | "{\"a\":  [1, null]}"
        jsonb | '{"b":1,"a":"x"}' | "{\"a\": \"x\", \"b\": 1}"
        refcursor | 'c' | "c"
        uuid | 'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11' | "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
        bytea | '\x000102ff' | "AAEC/w=="
        bytea | '' | ""
        date | '1970-01-01' | 0
        date | '2016-11-04' | 17109
        date | '1969-12-31' | -1
        date | '10000-01-01' | 2932897
        date | '5874897-12-31' | 2145042905
        date | '0001-01-01' | -719162
        date | '0001-12-31 BC' | -719163
        date | '4714-11-24 BC' | -2440588
        date | 'infinity' | -2147472692
        date | '-infinity' | -2147472691
        time | '13:51:30' | 49890000000
        time | '00:00:00.000001' | 1
        time | '24:00:00' | 86400000000
        time(3) | '13:51:30.123' | 49890123
        time(0) | '13:51:30.6' | 49891000
        time(4) | '13:51:30.12345' | 49890123500
        timetz | '13:51:30.123789+02:00' | "11:51:30.123789Z"
        timetz | '17:00:00+00' | "17:00:00Z"
        timetz | '01:00:00.500+05:30' | "19:30:00.5Z"
        timetz | '24:00:00+00' | "24:00:00Z"
        timetz | '24:00:00-02' | "02:00:00Z"
        timetz | '00:00:00+15:59:59' | "08:00:01Z"
        timetz(3) | '13:51:30.1234+02' | "11:51:30.123Z"
        timestamp | '2016-11-04 13:51:30.123456' | 1478267490123456
        timestamp | '2016-11-04 13:51:30.5' | 1478267490500000
        timestamp | '1936-10-25 22:10:12.608' | -1047174587392000
        timestamp | '1969-12-31 23:59:59.999999' | -1
        timestamp | '21016-11-04 13:51:30.123456' | 601060312290123456
        timestamp | '294247-01-01 23:59:59.999999' | 9223371331199999999
        timestamp | '4713-12-31 23:59:59.999999 BC' | -210831897600000001
        timestamp | 'infinity' | 9223372036825200000
        timestamp | '-infinity' | -9223372036832400000
        timestamp(3) | '2016-11-04 13:51:30.1237' | 1478267490124
        timestamp(3) | '1969-12-31 23:59:59.999' | -1
        timestamp(3) | 'infinity' | 9223372036825200
        timestamp(0) | '2016-11-04 13:51:30.4' | 1478267490000
        timestamp(6) | '2016-11-04 13:51:30.4' | 1478267490400000
        timestamptz | '2016-11-04 13:51:30.123456+02' | "2016-11-04T11:51:30.123456Z"
        timestamptz | '2020-04-01 00:01:02+00' | "2020-04-01T00:01:02.000000Z"
        timestamptz | '2020-04-01 00:01:02.25+00' | "2020-04-01T00:01:02.250000Z"
        timestamptz | '21016-11-04 13:51:30.000000+07' | "+21016-11-04T06:51:30.000000Z"
        timestamptz | '294247-01-01 23:59:59.999999+00' | "+294247-01-01T23:59:59.999999Z"
        timestamptz | '4714-12-31 23:59:59.999999+00 BC' | "-4713-12-31T23:59:59.999999Z"
        timestamptz | '0044-03-15 12:00:00+00 BC' | "-0043-03-15T12:00:00.000000Z"
        timestamptz | '0001-03-15 12:00:00+00 BC' | "0000-03-15T12:00:00.000000Z"
        timestamptz | 'infinity' | "infinity"
        timestamptz | '-infinity' | "-infinity"
        timestamptz(3) | '2020-04-01 00:01:02.1+00' | "2020-04-01T00:01:02.100Z"
        timestamptz(0) | '2020-04-01 00:01:02.9+00' | "2020-04-01T00:01:03Z"
        interval | 'P1Y2M3DT4H5M6.78S' | "P1Y2M3DT4H5M6.78S"
        interval | '0' | "P0Y0M0DT0H0M0S"
        interval | '-1 year -2 mons +3 days -04:05:06' | "P-1Y-2M3DT-4H-5M-6S"
        interval | '-0.5 seconds' | "P0Y0M0DT0H0M-0.5S"
        interval | '1 year 1 day' | "P1Y0M1DT0H0M0S"
        interval | '1 mon' | "P0Y1M0DT0H0M0S"
        interval | '100:00:10' | "P0Y0M0DT100H0M10S"
        interval | '-1 mon' | "P0Y-1M0DT0H0M0S"
        interval | '-00:00:00.000001' | "P0Y0M0DT0H0M-0.000001S"
        interval(3) | '1.23456 seconds' | "P0Y0M0DT0H0M1.235S"
        bit | '1' | true
        bit(1) | '0' | false
        bit(2) | '11' | "Aw=="
        bit(7) | '1000000' | "QA=="
        bit(16) | '0000000000000001' | "AQ=="
        bit(16) | '0000000000000000' | ""
        bit(64) | '1000000000000000000000000000000000000000000000000000000000000000' | "AAAAAAAAAIA="
        varbit(1) | '1' | true
        varbit(24) | '000000110000001000000001' | "AQID"
        varbit | '101' | "BQ=="
        varbit | '' | ""
        varbit | '111011010001000110000001000000001' | "AQIj2gE="
        point | '(1,1)' | {"x":1.0,"y":1.0,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAPA/","srid":null}
        point | '(-1.5,NaN)' | {"x":-1.5,"y":"NaN","wkb":"AQEAAAAAAAAAAAD4vwAAAAAAAPh/","srid":null}
        mood | 'so "so"' | "so \"so\""
        age | 7 | 7
        old_age | 71 | 71
        price | 7 | "7.00"
        at_ms | '2016-11-04 13:51:30.1237' | 1478267490124
        ages | '{1,2}' | [1,2]
        citext | 'Hello' | "Hello"
        bool[] | '{t,f,NULL}' | [true,false,null]
        int2[] | '{}' | []
        int4[] | '{1,2,3}' | [1,2,3]
        int4[] | '{{1,2},{3,NULL}}' | [[1,2],[3,null]]
        int4[] | '[0:1]={7,8}' | [7,8]
        int4[] | '[-1:0][2:3]={{1,2},{3,4}}' | [[1,2],[3,4]]
        int8[] | '{1550166368505037572}' | [1550166368505037572]
        oid[] | '{3,4000000000}' | [3,4000000000]
        float4[] | '{1,2.5,NaN}' | [1.0,2.5,"NaN"]
        float8[] | '{1,-0}' | [1.0,-0.0]
        numeric[] | '{1.1,NaN,NULL}' | ["1.1","NAN",null]
        money[] | ARRAY[1234.5::money] | ["1234.50"]
        text[] | ARRAY['a', '', 'NULL', NULL, 'b,c', '{d}'] | ["a","","NULL",null,"b,c","{d}"]
        text[] | ARRAY['e"f', E'g\\h', ' i ', E'\t'] | ["e\"f","g\\h"," i ","\t"]
        text[] | ARRAY[['ä','b'],['c','d']] | [["ä","b"],["c","d"]]
        varchar(5)[] | '{a}' | ["a"]
        char(3)[] | '{a}' | ["a  "]
        bytea[] | ARRAY['\x0102'::bytea, ''] | ["AQI=",""]
        date[] | '{2016-11-04,infinity}' | [17109,-2147472692]
        time[] | '{00:01:02}' | [62000000]
        time(2)[] | '{00:01:02}' | [62000]
        timetz[] | '{13:51:02+02}' | ["11:51:02Z"]
        timestamp[] | '{2020-04-01 00:01:02}' | [1585699262000000]
        timestamp(3)[] | '{2020-04-01 00:01:02}' | [1585699262000]
        timestamptz[] | '{2020-04-01 13:51:02+02}' | ["2020-04-01T11:51:02.000000Z"]
        timestamptz(1)[] | '{2020-04-01 13:51:02+02}' | ["2020-04-01T11:51:02.0Z"]
        interval[] | '{1 day}' | ["P0Y0M1DT0H0M0S"]
        uuid[] | '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}' | ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]
        json[] | ARRAY['{"a": 1}'::json] | ["{\"a\": 1}"]
        jsonb[] | ARRAY['{"a": 1}'::jsonb] | ["{\"a\": 1}"]
        bit(1)[] | '{1,0}' | [true,false]
        bit(8)[] | '{00000001}' | ["AQ=="]
        point[] | '{"(1,1)"}' | [{"x":1.0,"y":1.0,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAPA/","srid":null}]
        mood[] | '{sad,"so \"so\""}' | ["sad","so \"so\""]
        age[] | '{1,NULL}' | [1,null]
        price[] | '{1}' | ["1.00"]
        citext[] | '{a}' | ["a"]
        """,
    ),
    *cases(
        r"""
        inet | '192.168.2.0/12' | "192.168.2.0/12"
        inet | '::1' | "::1"
        cidr | '192.168.100.128/25' | "192.168.100.128/25"
        macaddr | '08-00-2b-01-02-03' | "08:00:2b:01:02:03"
        macaddr8 | '08:00:2b:01:02:03:04:05' | "08:00:2b:01:02:03:04:05"
        int4range | '[1,6)' | "[1,6)"
        int8range | 'empty' | "empty"
        numrange | '[5.3,6.3)' | "[5.3,6.3)"
        tsrange | '[2019-03-31 15:30:00, infinity)' | "[\"2019-03-31 15:30:00\",infinity)"
        tstzrange | '[2017-06-05 11:29:12.549426+00,)' | "[\"2017-06-05 11:29:12.549426+00\",)"
        daterange | '[2019-03-31, 2019-04-30)' | "[2019-03-31,2019-04-30)"
        span | '[1,2]' | "[1,2]"
        span[] | ARRAY['[1,2]'::span] | ["[1,2]"]
        int4range[] | '{"[1,6)",empty}' | ["[1,6)","empty"]
        box | '((1,2),(3,4))' | "(3,4),(1,2)"
        box[] | '{(1,2),(3,4);(5,6),(7,8)}' | ["(3,4),(1,2)","(7,8),(5,6)"]
        circle | '<(1,2),3>' | "<(1,2),3>"
        line | '{1,2,3}' | "{1,2,3}"
        line[] | ARRAY['{1,2,3}'::line] | ["{1,2,3}"]
        lseg | '[(1,2),(3,4)]' | "[(1,2),(3,4)]"
        path | '((1,2),(3,4))' | "((1,2),(3,4))"
        polygon | '((1,2),(3,4))' | "((1,2),(3,4))"
        tsvector | 'a:1 b' | "'a':1 'b'"
        tsquery | 'fat <-> cat' | "'fat' <-> 'cat'"
        jsonpath | '$.a' | "$.\"a\""
        pg_lsn | '16/B374D848' | "16/B374D848"
        tid | '(1,2)' | "(1,2)"
        xid | '7' | "7"
        cid | '7' | "7"
        xid8 | '7' | "7"
        txid_snapshot | '10:20:10,14' | "10:20:10,14"
        pg_snapshot | '10:20:10,14' | "10:20:10,14"
        int2vector | '1 2 3' | "1 2 3"
        oidvector | '1 2 3' | "1 2 3"
        int2vector[] | ARRAY['1 2'::int2vector] | ["1 2"]
        address | ('Main "Street"', 7)::address | "(\"Main \"\"Street\"\"\",7)"
        address[] | ARRAY[('x', NULL)::address] | ["(x,)"]
        extra.hstore | '"k"=>"v", "quo\"te"=>NULL, "a"=>""' | "{\"a\":\"\",\"k\":\"v\",\"quo\\\"te\":null}"
        extra.hstore | '' | "{}"
        extra.hstore[] | ARRAY['a=>1'::extra.hstore] | ["{\"a\":\"1\"}"]
        ltree | 'Top.Science' | "Top.Science"
        lquery | 'Top.*{1,2}' | "Top.*{1,2}"
        ltxtquery | 'Top & !Science' | "Top & !Science"
        cube | '(1,2),(3,4.5)' | "(1, 2),(3, 4.5)"
        seg | '1.5 .. 2' | "1.5 .. 2"
        ean13 | '978-0-393-04002-9' | "978-0-393-04002-9"
        lo | 7 | 7
        """,
    ),
    *cases(
        r"""
        regclass | 'pg_class' | "pg_class"
        regtype | 'int4' | "integer"
        regnamespace | 'pg_catalog' | "pg_catalog"
        regproc | 'now' | "now"
        regtype[] | '{int4}' | ["integer"]
        regrange | '[int8,int4]' | "[bigint,integer]"
        registered | ('int4', 1)::registered | "(integer,1)"
        """,
        binary=False,
    ),
    *cases(
        r"""
        aclitem | makeaclitem(10, 10, 'SELECT', false) | "postgres=r/postgres"
        """,
    ),
    *cases(
        r"""
        numeric | 'Infinity' | "POSITIVE_INFINITY"
        numeric | '-Infinity' | "NEGATIVE_INFINITY"
        """,
        since=14,
    ),
    *cases(
        r"""
        int4multirange | '{[1,3),[5,7)}' | "{[1,3),[5,7)}"
        datemultirange[] | ARRAY['{}'::datemultirange] | ["{}"]
        """,
        since=14,
    ),
    *cases(
        r"""
        numeric(3,-2) | 1234 | "1200"
        """,
        since=15,
    ),
    *cases(
        r"""
        interval | 'infinity' | "infinity"
        interval | '-infinity' | "-infinity"
        """,
        since=17,
    ),
]


AWKWARD = r"""
bool[] | '[-1:0]={t,NULL}'
text[] | ARRAY['', 'null', 'NULL', 'nUll x', E'a\\b', 'a"b', 'a,b', '{}', E'\t', E'\x0b', 'ä ö', ' ', NULL]
text[] | ARRAY[[['a','b'],['c','d']],[['e','f'],['g','h']]]
citext[] | ARRAY['A;B']
box[] | '[2:3]={(1,2),(3,4);(5,6),(7,8)}'
address[] | ARRAY[('a"b', 1)::address, (E'c\\d', NULL)::address, ('', 2)::address, NULL, (NULL, NULL)::address]
home | ROW(' x', 1)
words | words('', 'a,b')
words | words('a"b', E'c\\d', '(]')
words | words(NULL, '[x]')
words | words(NULL, NULL)
words | words('NULL', 'null ')
numrange | numrange('-Infinity'::numeric, 'NaN'::numeric, '[]')
numrange | numrange(-0.00010, 12345678901234567890.5)
tsrange | tsrange('-infinity', '0044-03-15 12:00:00.5 BC')
tstzrange | tstzrange('10000-01-01 00:00:00+00', 'infinity', '[]')
tstzrange[] | ARRAY[tstzrange('0044-03-15 12:00:00+00 BC', '2000-01-01 00:00:00.000001+00'), 'empty', NULL]
daterange | daterange('-infinity', 'infinity')
daterange | daterange('0001-01-01 BC', '5874897-12-31')
int8range | int8range(-9223372036854775808, NULL)
inet | '1.2.3.4/0'
inet | '::/0'
inet | '::'
inet | '::1.2.3.4'
inet | '::ffff:1.2.3.4/96'
inet | '::ffff:0:1.2.3.4'
inet | '::fffe:1.2.3.4'
inet | '2001:db8:0:0:1:0:0:1'
inet | '2001:0:0:1:0:0:0:1'
inet | '1:2:3:4:5:6:7:0'
inet | '1:2:3:4:5:6:0:0/77'
inet | '0:2:3:4:5:6:7:8'
cidr | '10.0.0.0/8'
cidr | '1.2.3.4'
cidr | '::/0'
cidr | '2001:db8::/32'
cidr[] | ARRAY['::1'::cidr, '10/8']
macaddr8[] | ARRAY['08:00:2b:01:02:03'::macaddr8]
tsvector | ''
tsvector | $$'a''b':1A,2B,3C,4D 'c\\d' 'e f':16383$$
tsvector[] | ARRAY['a:1 b'::tsvector]
tsquery | ''
tsquery | $$'a''b':*AB & !'c\\d':D | ( e <3> f )$$
tsquery | '!( a | b ) & !!c'
tsquery | 'a <-> ( b <-> c ) <-> d'
tsquery | '( a & b ) <0> c'
tsquery | 'a | b | c & d & ( e | f )'
tsquery | '!a <-> !( b <2> c )'
jsonpath | 'strict $."a b"[*] ? (@.x > 1.50)'
pg_lsn | '0/0'
pg_lsn | 'FFFFFFFF/FFFFFFFF'
xid8 | '18446744073709551615'
xid | '4294967295'
tid | '(4294967295,65535)'
txid_snapshot | '10:10:'
money[] | ARRAY['-92233720368547758.08', 0, 12.3]::money[]
interval[] | ARRAY['-1 year -2 mons +3 days -04:05:06.5'::interval, '1 mon -1 day 00:00:01', '0', '-1 day', '25:59:00']
interval[] | ARRAY['1 year 1 mon 1 day'::interval, '-1 mon 2 days', '-178000000 years', '-00:00:00.000001']
timetz[] | ARRAY['24:00:00+00'::timetz, '01:02:03.040-05:30', '01:02:03+15:59:59', '01:02:03-00:00:01']
float4[] | ARRAY[1e-45, 3.4028235e38, '-0', 'NaN', '-Infinity', 16777216, 0.1]::float4[]
path | '[(0.1,1e300),(-0,NaN)]'
polygon | '((0,0),(1,1),(1e-5,-Infinity))'
circle | '<(0.1,-0),0>'
cube | '(1,2)'
cube | '(0),(0)'
cube | cube(ARRAY[]::float8[])
cube | '(0.1,-0,1e300),(1,NaN,2)'
int2vector | ''
oidvector | '4294967295'
extra.hstore | '"a b"=>"c\"d\\", "NULL"=>NULL, e=>"NULL"'
xml | '<?xml version="1.1" encoding="UTF-8"?><a>ä</a>'
xml | '<?xml version="1.0" standalone="yes"?><a/>'
xml[] | ARRAY['<?xml version="1.0" encoding="LATIN1"?><a/>'::xml, 'a, b']
composed | ROW(1, 'x')::composed
composed[] | ARRAY[ROW(1, 'x, y')::composed]
"char"[] | ARRAY['a', '', '"']::"char"[]
json[] | ARRAY['{"a": [1, "b"]}'::json, NULL]
refcursor | 'a "b"'
everything | NULL::everything
everything[] | '{}'
"""
"""Values of which only this is known: both forms must become the same JSON."""

FULL = r"""
ROW(true, -32768, 2147483647, -1, 0.1, 1e300, 'NaN', -1234.5, 'a "b", (c)', 'x', 'n', '\x00ff', '0044-03-15 BC',
    '24:00:00', '01:02:03.5-03:30', '1999-12-31 23:59:59.9', 'infinity', '-1 year 2 days 03:04:05',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, "b"]}', '{"a": [1, "b"]}', '<a b="c"/>', '101', '1', '::1/64',
    '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '(1,2)', '[(1,2),(3,4)]', '((1,2),(3,4))',
    '((1,2),(3,4))', '((1,2),(3,4))', '{1,2,3}', '<(1,2),3>', 'a:1A b', 'a & !b', '$.a', '16/B374D848', '7', '8', 9,
    '(1,2)', '10:20:10,14', '[1,6)', words('a b', 'c'), 'so "so"', 70, 1.5, ROW('Main "Street"', 7), ROW('x', NULL),
    ARRAY[ROW('a b', 1), NULL]::address[], '{{1,NULL},{3,4}}', ARRAY['', 'a"b'], '{(1,2),(3,4);(5,6),(7,8)}',
    'a=>1, b=>NULL', 'Ci', 'Top.Science', '(1,2),(3,4)', '1 2', '3 4')::everything
"""


@pytest.fixture
def written(database):
    """A database in which each case of its version is a row of a table of its own, and a slot that saw it."""
    due = [case for case in CASES if case.since <= database.version]
    write(database, [(case.type, case.value) for case in due])
    return database, due


def write(database, values: list[tuple[str, str]]) -> None:
    """A table `t<number>` for each value, of its type, and a slot that saw the value come."""
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute("CREATE PUBLICATION types FOR ALL TABLES")
        for number, (kind, _) in enumerate(values):
            connection.execute(f"CREATE TABLE t{number} (v {kind})".encode())
        connection.execute("SELECT pg_create_logical_replication_slot('types', 'pgoutput')")
        for number, (_, value) in enumerate(values):
            connection.execute(f"INSERT INTO t{number} VALUES ({value})".encode())


def frames(database, *, binary: bool) -> list[bytes]:
    """What a walsender would send, with the session settings of our own connections."""
    options = ["proto_version", "1", "publication_names", "types", *(["binary", "true"] if binary else [])]
    with psycopg.connect(database.dsn(), options=PINNED, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT lsn - '0/0', data FROM pg_logical_slot_peek_binary_changes('types', NULL, NULL, VARIADIC %s)",
            (options,),
        ).fetchall()
    return [b"w" + pack("!QQq", int(lsn), int(lsn), 0) + data for lsn, data in rows]


async def known_types(database, oids: list[int]) -> dict[int, TypeDescription]:
    connection = await connect(parse_dsn(database.dsn()), application_name="test")
    try:
        return await catalog.types(connection, oids)
    finally:
        await connection.close()


def json_of_each(database, stream: list[bytes], *, binary: bool = False) -> dict[str, str]:
    """For each table the JSON of its only value, or the error with which it was described."""
    encoder = record_stream(EncoderSettings("test", "p", "d"), binary=binary)
    relations = [read_message(frame, 25) for frame in stream if frame[25] == Relation.tag]
    names: dict[int, str] = {}
    oids = []
    for relation in relations:
        assert isinstance(relation, Relation)
        oids += [column.type_oid for column in relation.columns]
    types = asyncio.run(known_types(database, oids))
    seen: dict[str, str] = {}
    for relation in relations:
        assert isinstance(relation, Relation)
        try:
            encoder.define(relation, TableDescription(), types)
        except WithoutBinaryError as error:
            assert unreadable_binary(relation, types)
            seen[relation.name] = str(error)
            continue
        assert not binary or unreadable_binary(relation, types) == ()
        names[relation.oid] = relation.name
    encoder.begin(1, 2, 3, None)
    for frame in stream:
        if frame[25] == Insert.tag:
            oid = int.from_bytes(frame[26:30], "big")
            if oid not in names:
                continue
            out: list[Record] = []
            encoder.encode(frame, False, 0, out)
            value = out[0][2]
            assert value is not None
            after = value.decode().partition('"after":{"v":')[2]
            seen[names[oid]] = after.partition('},"source":')[0]
    return seen


def test_text_and_binary_values_become_the_json_that_the_rules_demand(written):
    database, due = written
    seen = json_of_each(database, frames(database, binary=False))
    got = {(number, case.type, case.value): seen.get(f"t{number}") for number, case in enumerate(due)}
    assert got == {(number, case.type, case.value): case.json for number, case in enumerate(due)}
    if database.version < 14:
        return
    seen = json_of_each(database, frames(database, binary=True), binary=True)
    for number, case in enumerate(due):
        got_binary = seen[f"t{number}"]
        if case.binary:
            assert (case.type, case.value, got_binary) == (case.type, case.value, case.json)
        else:
            assert "whose binary form cdcd cannot read" in got_binary, case.type


@pytest.mark.postgres(since=14)
def test_awkward_values_of_all_types_within_each_other_are_the_same_in_both_forms(database):
    lines = [line.split(" | ", 1) for line in AWKWARD.strip().split("\n")]
    values = [(kind, value) for kind, value in lines]
    values += [("everything", FULL), ("everything[]", f"ARRAY[{FULL}, NULL, {FULL}]")]
    write(database, values)
    as_text = json_of_each(database, frames(database, binary=False))
    as_binary = json_of_each(database, frames(database, binary=True), binary=True)
    assert len(as_text) == len(values)
    for number, (kind, value) in enumerate(values):
        assert (kind, value, as_binary[f"t{number}"]) == (kind, value, as_text[f"t{number}"])


@pytest.mark.postgres(since=14)
@pytest.mark.parametrize(
    ("kind", "value", "name"),
    [
        ("aclitem[]", "ARRAY[makeaclitem(10, 10, 'SELECT', false)]", "aclitem[]"),
        ("granted", "ROW(makeaclitem(10, 10, 'SELECT', false), 1)", "public.granted"),
        ("seg[]", "ARRAY['1'::seg]", "public.seg[]"),
    ],
)
def test_what_holds_a_type_that_the_server_cannot_send_is_found_before_the_server_fails(
    database, kind, value, name
):
    """The stream ends with an error of the server where such a row comes in binary form."""
    database.execute("CREATE TYPE granted AS (item aclitem, number int)")
    database.execute("CREATE EXTENSION seg")
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    database.execute("CREATE PUBLICATION types FOR ALL TABLES")
    database.execute("SELECT pg_create_logical_replication_slot('types', 'pgoutput')")
    database.execute(f"INSERT INTO t VALUES (1, {value})")
    with pytest.raises(psycopg.errors.UndefinedFunction, match="no binary output function"):
        frames(database, binary=True)
    (relation,) = [
        read_message(frame, 25) for frame in frames(database, binary=False) if frame[25] == Relation.tag
    ]
    assert isinstance(relation, Relation)
    types = asyncio.run(known_types(database, [column.type_oid for column in relation.columns]))
    assert unreadable_binary(relation, types) == (name,)


def drawn(random: Random) -> dict[str, list[str]]:
    """Values of types whose text is made of numbers by rules that a list of cases would not exhaust."""
    doubles = [unpack("!d", random.randbytes(8))[0] for _ in range(5000)]
    doubles += [2.0**power for power in range(-1074, 1024)]
    doubles += [float(random.randrange(2**53, 10 ** random.randint(17, 42))) for _ in range(5000)]
    singles = [unpack("!f", random.randbytes(4))[0] for _ in range(5000)]
    singles += [2.0**power for power in range(-149, 128)]
    singles += [unpack("!f", pack("!f", random.randrange(10**8, 10**20)))[0] for _ in range(5000)]
    groups = [
        [random.choice((0, 0, 1, 0xFFFF, random.randrange(65536))) for _ in range(8)] for _ in range(3000)
    ]
    return {
        "float8": [repr(value) for value in doubles],
        "float4": [repr(value) for value in singles],
        "inet": [f"{':'.join([f'{each:x}' for each in one])}/{random.choice((64, 128))}" for one in groups],
        "interval": [
            f"{random.randint(-30, 30)} mons {random.randint(-9, 9)} days {random.uniform(-1e5, 1e5):.6f} s"
            for _ in range(3000)
        ],
        "tsquery": [query(random) for _ in range(2000)],
    }


def query(random: Random, depth: int = 0) -> str:
    kind = random.random()
    if depth > 4 or kind < 0.35:
        return random.choice(("a", "'b c':*", "'it''s':AB", "x:D"))
    if kind < 0.5:
        return f"!({query(random, depth + 1)})"
    operator = random.choice(("&", "|", "<->", "<3>"))
    return f"({query(random, depth + 1)}) {operator} ({query(random, depth + 1)})"


@pytest.mark.postgres(only=18)
def test_values_that_are_drawn_are_read_as_the_server_writes_them(database):
    with psycopg.connect(database.dsn(), options=PINNED, autocommit=True) as connection:
        for kind, values in drawn(Random(5)).items():
            reader = READERS[next(oid for oid, known in BUILTIN_TYPES.items() if known.name == kind)]
            send = f"{kind}{'_' if kind in ('inet', 'interval') else ''}send"
            statement = f"SELECT format('%%s', v), {send}(v) FROM unnest(%s::{kind}[]) v"
            rows = connection.execute(statement.encode(), (values,)).fetchall()
            assert [reader(bytes(data)) for _, data in rows] == [text for text, _ in rows]


def test_the_table_of_built_in_types_is_that_of_the_server(database):
    rows = database.execute(
        """SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typcategory::text,
                  CASE WHEN e.typarray = t.oid THEN t.typelem ELSE 0 END, t.typbasetype, t.typtypmod, t.typdelim::text,
                  coalesce(r.rngsubtype, m.rngtypid), t.typsend <> 0
             FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_type e ON e.oid = t.typelem
                  LEFT JOIN pg_range r ON r.rngtypid = t.oid
                  LEFT JOIN pg_range m ON (to_jsonb(m) ->> 'rngmultitypid')::oid = t.oid
            WHERE t.oid < 12000 AND t.typtype NOT IN ('p', 'c')
              AND coalesce(e.typtype, 'b') NOT IN ('p', 'c') AND n.nspname = 'pg_catalog'"""
    )
    of_server = {row[0]: TypeDescription(*[*row[:9], (row[9],) if row[9] else (), row[10]]) for row in rows}
    # The category says how casts are chosen; that of internal types changed in 14, and means nothing to us.
    assert {oid: _without_category(kind) for oid, kind in of_server.items()} == {
        oid: _without_category(kind) for oid, kind in BUILTIN_TYPES.items() if oid in of_server
    }
    if database.version == 18:
        assert set(of_server) == set(BUILTIN_TYPES)


def _without_category(kind: TypeDescription) -> tuple[object, ...]:
    of_type = (kind.oid, kind.name, kind.kind, kind.is_array, kind.element_oid, kind.delimiter, kind.base_oid)
    return *of_type, kind.parts, kind.sends
