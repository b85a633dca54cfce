"""Structs are read from several threads at once, also for the first time; and only through one module."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import meruit
from meruit.model import decoding
from meruit.model.decoding import convert_to, decode_json, json_decoder, msgpack_decoder
from meruit.model.verdict import VerificationResult

ROOT = Path(meruit.__file__).parent
# With msgspec alone, it dies by a segmentation fault in the first few rounds.
FIRST_READS = """
import sys, threading
import msgspec
from meruit.model.decoding import convert_to, decode_json

sys.setswitchinterval(1e-6)
FIELDS, PARTS, THREADS = range(10), range(8), 8
plain = {f"part_{part}": [{f"field_{field}": 1 for field in FIELDS}] for part in PARTS}
written = msgspec.json.encode(plain)
for number in range(40):
    parts = [
        msgspec.defstruct(f"Part{number}_{part}", [(f"field_{field}", int | str | None) for field in FIELDS])
        for part in PARTS
    ]
    whole = msgspec.defstruct(f"Whole{number}", [(f"part_{part}", list[kind]) for part, kind in enumerate(parts)])
    begin, read = threading.Barrier(THREADS), []

    def run(reads):
        begin.wait()
        read.append(reads())

    ways = [lambda: decode_json(written, whole), lambda: convert_to(plain, whole)]
    threads = [threading.Thread(target=run, args=(ways[one % 2],)) for one in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == THREADS
    assert all(one == read[0] for one in read)
"""


def test_threads_may_read_a_struct_for_the_first_time_together() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_READS], capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


# One thread makes decoders all the time; a child that is forked meanwhile makes one, too.
FORKED = """
import os, sys, threading
import msgspec
from meruit.model.decoding import decode_json

def fields(name):
    return msgspec.defstruct(name, [(f"field_{field}", int | str | None) for field in range(40)])

def run():
    number = 0
    while not done:
        number += 1
        decode_json(b"{}", list[fields(f"Busy{number}")] | dict)

done = []
thread = threading.Thread(target=run)
thread.start()
for number in range(30):
    child = os.fork()
    if not child:
        threading.Timer(20, os._exit, [1]).start()
        decode_json(b"[]", list[fields(f"Child{number}")])
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        done.append(True)
        sys.exit("a child hung")
done.append(True)
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_child_that_is_forked_meanwhile_reads_too() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr


class Point(msgspec.Struct):
    x: int
    y: list[int] = []


def test_each_way_reads_the_same() -> None:
    point = Point(1, [2])
    assert decode_json(b'{"x":1,"y":[2]}', Point) == point
    assert decode_json('{"x":"1","y":["2"]}', Point, strict=False) == point
    assert convert_to({"x": 1, "y": [2]}, Point) == point
    assert convert_to({"x": "1", "y": ["2"]}, Point, strict=False) == point
    assert msgpack_decoder(Point).decode(msgspec.msgpack.encode(point)) == point
    assert json_decoder(Point) is json_decoder(Point)
    assert decode_json(b"[1,2]", list[int]) == [1, 2]
    for wrong in (b'{"x":"1"}', b"{", b"\xff"):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode_json(wrong, Point)
    with pytest.raises(msgspec.ValidationError):
        convert_to({"x": "1"}, Point)


def test_records_are_read_by_one_decoder() -> None:
    with pytest.raises(msgspec.ValidationError):
        VerificationResult.from_json(b"{}")
    assert VerificationResult in decoding._known


def typed_reads(source: str) -> Iterator[int]:
    """The lines that read into a type by msgspec itself."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("msgspec.json", "msgspec.msgpack"):
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("msgspec."):
            name = ast.unparse(node.func).rpartition(".")[2]
            typed = any(keyword.arg == "type" for keyword in node.keywords)
            if name == "convert" or (name == "decode" and typed) or (name == "Decoder" and (typed or node.args)):
                yield node.lineno


def test_nothing_else_reads_into_structs() -> None:
    files = [one for one in ROOT.rglob("*.py") if one != Path(decoding.__file__)]
    found = [f"{one.relative_to(ROOT)}:{line}" for one in files for line in typed_reads(one.read_text("utf-8"))]
    assert found == []
    for source in ("msgspec.json.decode(b'', type=X)", "msgspec.json.Decoder(X)", "msgspec.convert(1, X)"):
        assert [*typed_reads(source)] == [1]
    assert [*typed_reads("msgspec.json.decode(b'')\nmsgspec.json.Decoder()")] == []
