"""What a row costs, counted and not timed: a machine that is busy counts the same.

Uncompiled, each step of the interpreter on the way from the frames of a transaction to its records is counted by a
tracer; compiled, the processor's instructions are, by valgrind, where it is installed. The bands are wide enough for
Python's versions, and for nothing that would be noticed: a call for each column is outside of them. Who makes a row
cheaper moves the band.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Begin, Column, Commit, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import Changes, Closed, Opened

COLUMNS = (
    ("id", 20, b"123456"),
    ("customer", 23, b"4711"),
    ("status", 25, b"shipped"),
    ("amount", 1700, b"1234.50"),
    ("ratio", 701, b"0.25"),
    ("paid", 16, b"t"),
    ("created", 1184, b"2026-01-01 00:00:00.123456+00"),
    ("due", 1082, b"2026-02-03"),
    ("reference", 2950, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("note", 25, b"delivered to the neighbour of customer 4711"),
)

STEPS_A_ROW = (800, 1_350)
STEPS_A_TRANSACTION = (450, 850)
INSTRUCTIONS_A_ROW = (7_000, 14_000)


def transactions(number: int, rows: int) -> list[bytes]:
    """The frames of so many transactions of so many rows."""
    frames = []
    row = write_message(Insert(None, 1, tuple([value for _, _, value in COLUMNS])))
    for transaction in range(number):
        lsn = 1000 + transaction * 1000
        messages = [
            write_message(Begin(lsn, 0, 700 + transaction)),
            *[row] * rows,
            write_message(Commit(lsn, lsn + 10, 0)),
        ]
        frames += [write_frame(XLogData(lsn, lsn, 0, message)) for message in messages]
    return frames


def work(frames: list[bytes], directory: Path) -> list[Record]:
    """From frames to records, as the pipeline does it."""
    encoder = record_stream(EncoderSettings("1", "shop", "shop"))
    columns = tuple(Column(int(name == "id"), name, oid, -1) for name, oid, _ in COLUMNS)
    encoder.define(Relation(None, 1, "public", "item", "d", columns), TableDescription(("id",)), {})
    assembler = Assembler(Ledger(), Spool(str(directory), 1_000_000), Position(), encoder.draft_all)
    out: list[Record] = []
    for step in assembler.assemble(frames):
        if isinstance(step, Changes):
            encoder.encode_all(step.items, step.in_stream, 1_700_000_000_000_000, out)
        elif isinstance(step, Opened):
            encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        else:
            assert isinstance(step, Closed)
    return out


def steps(number: int, rows: int, directory: Path) -> int:
    """Bytecode instructions of that in cdcd's own modules, for so many transactions of so many rows."""
    counted = 0
    frames = transactions(number, rows)

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal counted
        if event == "call":
            if "/cdcd/" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            counted += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work(frames, directory)
    finally:
        sys.settrace(before)
    return counted


@pytest.mark.skipif(is_compiled(), reason="no bytecode runs")
def test_a_row_and_a_transaction_cost_the_interpreter_no_more_steps_than_they_did(tmp_path):
    a_row = (steps(1, 40, tmp_path) - steps(1, 20, tmp_path)) / 20
    a_transaction = (steps(40, 1, tmp_path) - steps(20, 1, tmp_path)) / 20 - a_row
    print(f"{a_row:.0f} a row, {a_transaction:.0f} a transaction")
    assert STEPS_A_ROW[0] <= a_row <= STEPS_A_ROW[1]
    assert STEPS_A_TRANSACTION[0] <= a_transaction <= STEPS_A_TRANSACTION[1]


def instructions(rows: int, folder: Path) -> int:
    """Instructions of the processor for the whole of a Python that does it."""
    program = (
        "from pathlib import Path; from tests.unit.core.records.debezium_json.test_cost import transactions, work; "
        f"work(transactions(1, 100) * {rows // 100}, Path('.'))"
    )
    command = [
        "valgrind",
        "--tool=callgrind",
        f"--callgrind-out-file={folder / 'callgrind'}",
        sys.executable,
        "-c",
        program,
    ]
    # Sets and dictionaries of strings must have the same order each time.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    (line,) = [line for line in done.stderr.splitlines() if "Collected" in line]
    return int(line.rpartition(":")[2])


@pytest.mark.bench  # `make cost`: minutes, and the code must be optimised
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_compiled(), reason="the interpreter's own steps are counted")
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_row_costs_the_processor_no_more_instructions_than_it_did(tmp_path):
    a_row = (instructions(3000, tmp_path) - instructions(1000, tmp_path)) / 2000
    print(f"{a_row:.0f} instructions a row")
    assert INSTRUCTIONS_A_ROW[0] <= a_row <= INSTRUCTIONS_A_ROW[1]
