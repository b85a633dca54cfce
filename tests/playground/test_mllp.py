"""The engine that takes HL7 messages: what is sent is kept, however it is split, and answered."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import hl7
import pytest
from hl7.client import MLLPClient
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.checks.formats import hl7v2 as er7
from meruit.model.environment import SourceKind
from meruit.playground import mllp
from meruit.playground.mllp import END, START, Frames, MllpPiece
from meruit.playground.state import PlaygroundState

T = TypeVar("T")
NOON = datetime(2026, 3, 6, 12, tzinfo=UTC)
SIU = (
    "MSH|^~\\&|CLINIC|MAIN|SCHEDAPP|HOSPITAL|20260306100000||SIU^S13^SIU_S12|MSG-1|P|2.5.1\r"
    "SCH||483671\rPID|1||483671^^^MAIN^MR||Smith^John\r"
)


@pytest.fixture
def state(tmp_path: Path) -> PlaygroundState:
    return PlaygroundState.create(tmp_path / "one.playground", clock=lambda: NOON)


@contextlib.asynccontextmanager
async def listening(
    state: PlaygroundState, *, idle_s: float = 30, limit: int = 10_000, secret: str = "", needs_secret: bool = False
) -> AsyncIterator[mllp.MllpListener]:
    listener = await mllp.listen(
        state, "127.0.0.1", 0, lambda: NOON, secret=secret, needs_secret=needs_secret, idle_s=idle_s, limit=limit
    )
    try:
        yield listener
    finally:
        listener.close()
        await listener.wait_closed()


def talking(state: PlaygroundState, talk: Callable[[int], T], *, idle_s: float = 30, limit: int = 10_000) -> T:
    """What a blocking client makes of a listener."""

    async def run() -> T:
        async with listening(state, idle_s=idle_s, limit=limit) as listener:
            return await asyncio.to_thread(talk, listener.port)

    return asyncio.run(run())


def sent(port: int, *parts: bytes) -> bytes:
    """Everything that comes back until the other side, told that nothing follows, hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65_536):
                received += data
    return received


def acks(received: bytes) -> list[tuple[str, str]]:
    """MSA-1 and MSA-2 of each answer, read by another's parser."""
    found = []
    for piece in Frames().feed(received):
        assert piece.trouble is None
        message = hl7.parse(piece.content.decode())
        found.append((str(message.segment("MSA")[1]), str(message.segment("MSA")(2))))
    return found


def kept(state: PlaygroundState) -> list[tuple[bytes, str]]:
    return [(one.content(), one.facts["ack"]) for one in state.items(SourceKind.HL7)]


CONTENT = st.binary(max_size=40).filter(lambda content: b"\x0b" not in content and END not in content + b"\r")


@given(st.lists(CONTENT, max_size=6), st.data())
def test_frames_come_out_as_they_went_in_however_they_are_split(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"\r\n".join(START + content + END for content in contents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    frames, found = Frames(100), list[MllpPiece]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[start:end])
    assert [piece.content for piece in found + frames.end()] == contents
    assert not any(piece.trouble for piece in found)


@given(st.lists(st.sampled_from([b"\x0b", b"\x1c", b"\r", b"\x1c\r", b"a", b"MSH", b"bc"]), max_size=30), st.data())
@example([b"\x0b", b"a", b"a", b"a", b"a", b"a", b"\x1c\r"], None)
def test_garbage_is_cut_alike_however_it_is_split(parts: list[bytes], data: st.DataObject | None) -> None:
    stream = b"".join(parts)
    at_once = Frames(5)
    whole = [*at_once.feed(stream), *at_once.end()]
    sizes = [1] if data is None else data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    frames, found, start = Frames(5), list[MllpPiece](), 0
    while start < len(stream):
        size = sizes[start % len(sizes)]
        found += frames.feed(stream[start : start + size])
        start += size
    assert found + frames.end() == whole
    assert all(len(piece.content) <= 6 for piece in whole)


def test_a_known_client_is_acknowledged(state: PlaygroundState) -> None:
    def talk(port: int) -> list[bytes]:
        with MLLPClient("127.0.0.1", port) as client:
            return [client.send_message(SIU), client.send_message(SIU.replace("MSG-1", "MSG-2"))]

    first, second = talking(state, talk)
    message = hl7.parse(first.strip(START + END).decode())
    header = message.segment("MSH")
    assert [str(header[n]) for n in (3, 4, 5, 6, 7)] == [
        "SCHEDAPP",
        "HOSPITAL",
        "CLINIC",
        "MAIN",
        "20260306120000+0000",
    ]
    assert (str(header[9]), str(header[11]), str(header[12])) == ("ACK^S13^ACK", "P", "2.5.1")
    assert acks(first + second) == [("AA", "MSG-1"), ("AA", "MSG-2")]
    assert str(header[10]) != str(hl7.parse(second.strip(START + END).decode()).segment("MSH")[10])
    (item, _) = state.items(SourceKind.HL7)
    assert item.content() == SIU.encode()
    assert item.facts == {"type": "hl7_outbound", "at": "2026-03-06T12:00:00.000000Z", "ack": "AA"}
    assert [(event.type, event.key) for event in state.events()] == [("hl7_outbound", f"{n:06}") for n in (1, 2)]


@pytest.mark.parametrize("field", [9, 10, 11, 12])
def test_a_message_without_a_required_field_is_an_error(state: PlaygroundState, field: int) -> None:
    header, *rest = SIU.split("\r")
    fields = header.split("|")
    fields[field - 1] = ""
    message = "\r".join(["|".join(fields), *rest]).encode()
    received = talking(state, lambda port: sent(port, START + message + END))
    assert acks(received) == [("AE", "" if field == 10 else "MSG-1")]
    assert f"MSH-{field}".encode() in received
    assert kept(state) == [(message, "AE")]
    assert f"MSH-{field}" in state.items(SourceKind.HL7)[0].facts["trouble"]


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe\x00", b"MSH|^~\\&|\xff", b"MSH", (SIU + SIU).encode()])
def test_what_is_no_message_is_rejected_and_kept(state: PlaygroundState, content: bytes) -> None:
    received = talking(state, lambda port: sent(port, START + content + END, START + SIU.encode() + END))
    assert acks(received) == [("AR", ""), ("AA", "MSG-1")]
    assert kept(state) == [(content, "AR"), (SIU.encode(), "AA")]


def test_bytes_around_frames_are_kept_and_the_frames_are_taken(state: PlaygroundState) -> None:
    unframed, whole = SIU.encode(), START + SIU.encode() + END
    received = talking(
        state, lambda port: sent(port, unframed, whole, b"\r\n", START + b"cut off", whole, START + b"half")
    )
    assert acks(received) == [("AR", "MSG-1"), ("AA", "MSG-1"), ("AR", ""), ("AA", "MSG-1")]
    assert [content for content, _ in kept(state)] == [unframed, SIU.encode(), b"cut off", SIU.encode(), b"half"]
    assert [code for _, code in kept(state)] == ["AR", "AA", "AR", "AA", "AR"]


def test_a_frame_that_never_ends_ends_the_connection_only(state: PlaygroundState) -> None:
    def talk(port: int) -> tuple[bytes, bytes]:
        return sent(port, START, b"x" * 3_000), sent(port, START + SIU.encode() + END)

    endless, sound = talking(state, talk, limit=1_000)
    assert acks(endless) in ([("AR", "")], [])
    assert acks(sound) == [("AA", "MSG-1")]
    assert kept(state)[0] == (b"x" * 1_000, "AR")


def test_silence_ends_a_connection(state: PlaygroundState) -> None:
    def talk(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(START + b"MSH|")
            return connection.recv(100)

    assert talking(state, talk, idle_s=0.05) == b""
    assert kept(state) == [(b"MSH|", "AR")]


def test_the_ack_uses_the_senders_delimiters_and_charset(state: PlaygroundState) -> None:
    message = "MSH$%~!@$Müller$$Größe$$20260306$$ADT%A01$ID!1$T$2.3$$$$$$8859/1\rEVN$A01\r".encode("latin-1")
    received = talking(state, lambda port: sent(port, START + message + END))
    (answer,) = Frames().feed(received)
    read = er7.read(answer.content)
    assert read.segments == ("MSH", "MSA")
    assert read.texts["MSH"][0].split("$")[:6] == ["MSH", "%~!@", "Größe", "", "Müller", ""]
    assert read.texts["MSA"] == ["MSA$AA$ID!1"]


def test_too_many_connections_are_turned_away(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mllp, "MAX_CONNECTIONS", 1)

    def talk(port: int) -> bytes:
        with MLLPClient("127.0.0.1", port) as client:
            client.send_message(SIU)
            with socket.create_connection(("127.0.0.1", port), timeout=300) as another:
                return another.recv(100)

    assert talking(state, talk) == b""


def test_the_listener_survives_a_failing_playground(state: PlaygroundState) -> None:
    def talk(port: int) -> tuple[bytes, bytes]:
        state.close()
        hidden = state.path.rename(state.path.with_suffix(".hidden"))
        lost = sent(port, START + SIU.encode() + END)
        hidden.rename(state.path)
        return lost, sent(port, START + SIU.encode() + END)

    lost, found = talking(state, talk)
    assert lost == b""
    assert acks(found) == [("AA", "MSG-1")]


def test_messages_that_wait_when_a_connection_ends_are_kept_one_by_one(
    state: PlaygroundState, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, answered = mllp.MllpListener._answer, list[MllpPiece]()

    async def answer_two(self: mllp.MllpListener, piece: MllpPiece, *rest: Any) -> None:
        answered.append(piece)
        if len(answered) > 2:
            raise OSError("the client has gone")
        await answer(self, piece, *rest)

    monkeypatch.setattr(mllp.MllpListener, "_answer", answer_two)
    messages = [SIU.replace("MSG-1", f"MSG-{number}").encode() for number in range(20)]
    received = talking(
        state, lambda port: sent(port, b"".join(START + one + END for one in messages) + START + b"half")
    )
    assert acks(received) == [("AA", "MSG-0"), ("AA", "MSG-1")]
    # The client gets no answer to the third one, which was being answered.
    expected = [(one, "AA") for one in messages[:2]] + [(one, "AA") for one in messages[3:]] + [(b"half", "AR")]
    assert kept(state) == expected


def test_closing_ends_connections(state: PlaygroundState) -> None:
    async def run() -> bytes:
        async with listening(state) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(START + SIU.encode() + END)
            await reader.readuntil(END)
        rest = await reader.read()
        writer.close()
        return rest

    assert asyncio.run(run()) == b""
    assert mllp.MllpListener(state, lambda: NOON).sockets == ()


@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer_that_can_be_read(content: bytes) -> None:
    for tried in (content, SIU.encode() + content, b"MSH|^~\\&|" + content):
        receipt = mllp.examine(MllpPiece(tried))
        answer = mllp.acknowledgement(receipt, control_id="X1", at="20260306")
        assert er7.read(answer).segments[:2] == ("MSH", "MSA")
        assert START not in answer
        assert END not in answer


SECRET = "s3cret_of-the-playground"


def with_secret(secret: str, message: str = SIU) -> bytes:
    """The message in its frame, with MSH-8."""
    fields = message.split("|")
    return START + "|".join([*fields[:7], secret, *fields[8:]]).encode() + END


def talking_to_shared(state: PlaygroundState, talk: Callable[[int], T]) -> T:
    async def run() -> T:
        async with listening(state, secret=SECRET, needs_secret=True) as listener:
            return await asyncio.to_thread(talk, listener.port)

    return asyncio.run(run())


def contents(state: PlaygroundState) -> list[bytes]:
    return [one.content() for one in state.items(SourceKind.HL7)]


@pytest.mark.parametrize(
    "first",
    [
        *(
            with_secret(""),
            with_secret("x"),
            with_secret(SECRET[:-1]),
            with_secret(SECRET + "x"),
            with_secret("\u00e9"),
        ),
        *(START + b"not HL7" + END, START + b"MSH|" + END, b"stray " + with_secret(SECRET)),
        START + SIU.replace("MAIN", SECRET).encode() + END,
    ],
)
def test_a_first_message_without_the_secret_is_refused_and_not_kept(state: PlaygroundState, first: bytes) -> None:
    """And nothing after it is read, even with the secret."""
    received = talking_to_shared(state, lambda port: sent(port, first + with_secret(SECRET)))
    assert [code for code, _ in acks(received)] == ["AR"]
    assert contents(state) == []


def test_the_first_message_opens_the_connection_and_the_secret_is_not_kept(state: PlaygroundState) -> None:
    plain = START + SIU.replace("MSG-1", "MSG-2").encode() + END
    stray = f"stray {SECRET}".encode()
    received = talking_to_shared(state, lambda port: sent(port, with_secret(SECRET), plain, stray))
    assert acks(received) == [("AA", "MSG-1"), ("AA", "MSG-2")]
    assert SECRET.encode() not in received
    assert contents(state) == [SIU.encode(), SIU.replace("MSG-1", "MSG-2").encode(), b"stray "]


def test_a_frame_that_is_cut_before_the_secret_is_not_kept(state: PlaygroundState) -> None:
    assert talking_to_shared(state, lambda port: sent(port, with_secret(SECRET)[:-2])) == b""
    assert contents(state) == []


def test_clients_without_the_secret_do_not_keep_out_others(
    state: PlaygroundState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mllp, "MAX_CONNECTIONS", 2)

    def talk(port: int) -> bytes:
        with contextlib.ExitStack() as silent:
            for _ in range(5):
                silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
            return sent(port, with_secret(SECRET))

    assert acks(talking_to_shared(state, talk)) == [("AA", "MSG-1")]


def test_a_client_that_sends_no_secret_is_let_go(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mllp, "FIRST_S", 0.05)

    def talk(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(START)
            return connection.recv(1)

    assert talking_to_shared(state, talk) == b""


def test_the_secret_is_not_kept_where_none_is_needed(state: PlaygroundState) -> None:
    async def run() -> bytes:
        async with listening(state, secret=SECRET) as listener:
            return await asyncio.to_thread(sent, listener.port, with_secret(SECRET), START + SIU.encode() + END)

    assert acks(asyncio.run(run())) == [("AA", "MSG-1"), ("AA", "MSG-1")]
    assert contents(state) == [SIU.encode(), SIU.encode()]


class CountingBuffer(bytearray):
    """Counts the bytes that are searched."""

    searched = 0

    def find(self, mark: Any, start: Any = 0, end: Any = None) -> int:
        found = super().find(mark, start, end)
        last = len(self) if end is None else end
        self.searched += (last if found < 0 else found + 1) - min(start, last)
        return found


@pytest.mark.parametrize("part", [START, END, START + END, START + b"a", b"a" + END, START + b"a" + END])
def test_marks_are_found_without_searching_the_rest_for_each(part: bytes) -> None:
    frames = Frames()
    frames._buffer = buffer = CountingBuffer()
    stream = part * 2_000
    assert len([*frames.feed(stream)]) <= 2_000
    assert buffer.searched < 6 * len(stream)


def test_what_arrives_at_once_is_taken_one_by_one() -> None:
    frames = Frames()
    pieces = frames.feed((START + b"a" + END) * 1_000)
    assert next(pieces).content == b"a"
    # The rest waits, so that others run meanwhile.
    assert len(frames._buffer) == 999 * len(START + b"a" + END)
