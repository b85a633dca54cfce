"""What one playground holds: nothing is lost, nothing is half done, and every moment can be gone back to."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

import meruit.playground.state
from meruit.errors import MeruitError, PlaygroundFull, Unreachable
from meruit.model.environment import SourceKind
from meruit.playground.state import MAX_APPENDED, NAMES, REFUSED, SPARE_BYTES, PlaygroundState

NOON = datetime(2026, 3, 6, 12, 0, 0, 5, UTC)
KINDS = st.sampled_from([SourceKind.FHIR, SourceKind.ROWS, SourceKind.FILES])
KEYS = st.sampled_from(["Patient/1", "Patient/10", "Patient/é", "a b", "z"])
BODIES = st.binary(max_size=20)
CHECKPOINTS = st.sampled_from(["start", "later"])
WRITER = """
import sys
from pathlib import Path
from meruit.model.environment import SourceKind
from meruit.playground.state import PlaygroundState

state = PlaygroundState(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    with state.change():
        state.append(SourceKind.HL7, f"{sys.argv[2]}-{number}".encode(), event="hl7_outbound")
        state.put(SourceKind.ROWS, f"last/{sys.argv[2]}", str(number).encode(), event="row")
    print(number, flush=True)
"""

Content = dict[tuple[SourceKind, str], bytes]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[PlaygroundState]:
    with closing(PlaygroundState.create(tmp_path / "state.db", clock=lambda: NOON, settings={"secret": "s"})) as made:
        yield made


def held(state: PlaygroundState) -> Content:
    return {(kind, one.key): one.content() for kind in SourceKind for one in state.items(kind)}


class Model:
    """What a state should hold: items, how many versions of each, and what was remembered of both."""

    def __init__(self) -> None:
        self.items: Content = {}
        self.versions: dict[tuple[SourceKind, str], int] = {}
        self.checkpoints: dict[str, tuple[Content, dict[tuple[SourceKind, str], int]]] = {}

    def copy(self) -> "Model":
        other = Model()
        other.items, other.versions = dict(self.items), dict(self.versions)
        other.checkpoints = dict(self.checkpoints)
        return other

    def count(self, kind: SourceKind, key: str) -> None:
        self.versions[kind, key] = self.versions.get((kind, key), 0) + 1


class Lives(RuleBasedStateMachine):
    """Playgrounds that are written to, remembered, put back and branched, each beside a plain dictionary."""

    states = Bundle("states")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.models: dict[Path, tuple[PlaygroundState, Model]] = {}

    def teardown(self) -> None:
        for state, _ in self.models.values():
            state.close()
        self.folder.cleanup()

    def _place(self) -> Path:
        return Path(self.folder.name) / f"{len(self.models)}.db"

    @initialize(target=states)
    def create(self) -> Path:
        place = self._place()
        self.models[place] = PlaygroundState.create(place), Model()
        return place

    @rule(target=states, place=states)
    def branch(self, place: Path) -> Path:
        state, model = self.models[place]
        made = self._place()
        self.models[made] = state.branch(made), model.copy()
        return made

    @rule(place=states, kind=KINDS, key=KEYS, body=BODIES)
    def put(self, place: Path, kind: SourceKind, key: str, body: bytes) -> None:
        state, model = self.models[place]
        assert state.put(kind, key, body, event="put").content() == body
        model.items[kind, key] = body
        model.count(kind, key)

    @rule(place=states, body=BODIES)
    def append(self, place: Path, body: bytes) -> None:
        state, model = self.models[place]
        key = f"{sum(1 for kind, _ in model.items if kind is SourceKind.HL7) + 1:06}"
        assert state.append(SourceKind.HL7, body, event="append").key == key
        model.items[SourceKind.HL7, key] = body
        model.count(SourceKind.HL7, key)

    @rule(place=states, kind=KINDS, key=KEYS)
    def remove(self, place: Path, kind: SourceKind, key: str) -> None:
        state, model = self.models[place]
        removed = state.remove(kind, key, event="remove")
        assert (removed.content() if removed else None) == model.items.pop((kind, key), None)
        if removed:
            model.count(kind, key)

    @rule(place=states, kind=KINDS, key=KEYS, body=BODIES)
    def fail(self, place: Path, kind: SourceKind, key: str, body: bytes) -> None:
        state, _ = self.models[place]
        with suppress(ZeroDivisionError), state.change():
            state.put(kind, key, body, event="put")
            state.remove(kind, key, event="remove")
            state.append(SourceKind.HL7, body, event="append")
            raise ZeroDivisionError

    @rule(place=states, name=CHECKPOINTS)
    def checkpoint(self, place: Path, name: str) -> None:
        state, model = self.models[place]
        state.checkpoint(name)
        model.checkpoints[name] = dict(model.items), dict(model.versions)

    @rule(place=states, name=CHECKPOINTS)
    def reset(self, place: Path, name: str) -> None:
        state, model = self.models[place]
        if name not in model.checkpoints:
            with pytest.raises(MeruitError, match="no checkpoint"):
                state.reset(name)
            return
        last = [event.seq for event in state.events(limit=10_000)][-1:] or [0]
        state.reset(name)
        items, versions = model.checkpoints[name]
        model.items, model.versions = dict(items), dict(versions)
        told = state.events(limit=10_000)[-1]
        assert (told.type, told.facts) == ("reset", {"checkpoint": name})
        assert told.seq > last[0], "an event's number is never used again"

    @rule(place=states)
    def close(self, place: Path) -> None:
        self.models[place][0].release_if_idle()

    @invariant()
    def nothing_is_lost(self) -> None:
        for state, model in self.models.values():
            assert held(state) == model.items
            for (kind, key), count in model.versions.items():
                versions = state.versions(kind, key)
                assert len(versions) == count
                assert versions[-1].content == model.items.get((kind, key))
            assert state.checkpoints() == sorted(model.checkpoints)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=10, stateful_step_count=15)


def test_a_failed_change_leaves_nothing(state: PlaygroundState) -> None:
    with state.change():
        state.put(SourceKind.ROWS, "a/1", b"1", event="row")
        with suppress(ZeroDivisionError), state.change():
            state.put(SourceKind.ROWS, "a/2", b"2", event="row")
            raise ZeroDivisionError
    assert [one.key for one in state.items(SourceKind.ROWS)] == ["a/1"]
    assert [event.key for event in state.events()] == ["a/1"]


def test_all_of_a_change_happens_at_one_moment(tmp_path: Path) -> None:
    moments = iter([NOON.replace(minute=minute) for minute in range(60)])
    with closing(PlaygroundState.create(tmp_path / "state.db", clock=lambda: next(moments))) as state:
        with state.change():
            first = state.append(SourceKind.HL7, b"1", event="hl7_outbound")
            second = state.append(SourceKind.HL7, b"2", event="hl7_outbound")
        third = state.append(SourceKind.HL7, b"3", event="hl7_outbound")
    assert first.facts["at"] == second.facts["at"] < third.facts["at"]


def test_items_know_what_their_kind_says_beside_the_body(state: PlaygroundState) -> None:
    at = "2026-03-06T12:00:00.000005Z"
    file = state.put(SourceKind.FILES, "out/a.csv", b"abc", event="sftp_write")
    message = state.append(SourceKind.HL7, b"\xff\xfe", event="hl7_outbound")
    turn = state.append(SourceKind.VOICE, b"hello", event="voice_turn", facts={"speaker": "agent"})
    row = state.put(SourceKind.ROWS, "prior_auth/1", b"{}", event="row")
    assert file.facts == {"size": 3, "modified": at}
    assert message.facts == {"type": "hl7_outbound", "at": at}
    assert message.content() == b"\xff\xfe"
    assert turn.facts == {"type": "voice_turn", "at": at, "speaker": "agent"}
    assert row.facts == {}
    world = state.snapshots()
    assert {name: snapshot.kind for name, snapshot in world.items()} == NAMES
    assert world["drop"].items == [file]
    assert world["outbound"].items == [message]
    assert world["call"].items == [turn]
    assert world["portal"].items == [row]


def test_events_and_history_are_read_in_pages(state: PlaygroundState) -> None:
    for number in range(5):
        state.put(SourceKind.FHIR, f"Patient/{number % 2}", b"{}", version=str(number), event="fhir_update")
    state.put(SourceKind.FHIR, "PatientLike/1", b"{}", event="fhir_create")
    state.log("login", {"user": "clerk"})
    first = state.events(limit=4)
    rest = state.events(after=first[-1].seq)
    assert [event.seq for event in first + rest] == [1, 2, 3, 4, 5, 6, 7]
    assert (rest[-1].type, rest[-1].kind, rest[-1].key, rest[-1].facts) == ("login", None, None, {"user": "clerk"})
    pages = [state.history(SourceKind.FHIR, under="Patient/", limit=3)]
    pages.append(state.history(SourceKind.FHIR, under="Patient/", limit=3, before=pages[0][-1].seq))
    assert [one.version for page in pages for one in page] == ["4", "3", "2", "1", "0"]
    assert state.versions_count(SourceKind.FHIR, under="Patient/") == 5
    assert [one.key for one in state.items(SourceKind.FHIR, under="Patient/")] == ["Patient/0", "Patient/1"]


def test_settings_outlive_a_reset_and_a_branch_has_its_own(state: PlaygroundState, tmp_path: Path) -> None:
    state.checkpoint()
    state.set(secret="changed", call={"script": []})
    state.reset()
    assert state.settings() == {
        "call": {"script": []},
        "created_at": "2026-03-06T12:00:00.000005Z",
        "secret": "changed",
    }
    with closing(state.branch(tmp_path / "other" / "state.db", secret="other")) as branched:
        assert branched.settings()["secret"] == "other"
        branched.reset()
        assert branched.settings()["secret"] == "other"


def test_files_that_are_not_playgrounds_are_refused(tmp_path: Path, state: PlaygroundState) -> None:
    with pytest.raises(MeruitError, match=r"none\.db"):
        PlaygroundState(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("not a database, " * 100)
    with pytest.raises(Unreachable, match=r"text\.db"):
        PlaygroundState(tmp_path / "text.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(MeruitError, match=r"empty\.db"):
        PlaygroundState(tmp_path / "empty.db")
    with pytest.raises(MeruitError, match=str(state.path)):
        PlaygroundState.create(state.path)
    with pytest.raises(MeruitError, match=str(state.path)):
        state.branch(state.path)
    for name in ("", "../x", "A", "a b", "x" * 64):
        with pytest.raises(MeruitError, match="checkpoint name"):
            state.checkpoint(name)
    assert list(tmp_path.glob(".*")) == [], "nothing unfinished is left"


def test_a_system_has_a_last_item(state: PlaygroundState) -> None:
    state.put(SourceKind.HL7, str(MAX_APPENDED), b"", event="hl7_outbound")
    with pytest.raises(MeruitError, match="reset it"):
        state.append(SourceKind.HL7, b"", event="hl7_outbound")


def test_threads_that_write_at_once_lose_nothing(state: PlaygroundState) -> None:
    def write() -> None:
        for _ in range(50):
            with state.change():
                count = state.get(SourceKind.ROWS, "counter")
                state.put(
                    SourceKind.ROWS, "counter", str(int(count.body or 0) + 1 if count else 1).encode(), event="row"
                )

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = state.get(SourceKind.ROWS, "counter")
    assert found is not None
    assert found.body == "200"
    assert len(state.versions(SourceKind.ROWS, "counter")) == 200


def test_a_reader_sees_one_moment_while_another_resets(state: PlaygroundState) -> None:
    for key in ("a", "b"):
        state.put(SourceKind.ROWS, key, b"0", event="row")
    state.checkpoint()
    for key in ("a", "b"):
        state.put(SourceKind.ROWS, key, b"1", event="row")
    with closing(PlaygroundState(state.path)) as other, other.consistent_read():
        before = held(other)
        state.reset()
        assert held(other) == before
    assert set(held(state).values()) == {b"0"}


def _writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _told(writer: subprocess.Popen[str], line: str) -> None:
    assert writer.stdin is not None
    writer.stdin.write(line)
    writer.stdin.flush()


def test_two_processes_and_one_that_is_killed_lose_nothing(state: PlaygroundState) -> None:
    names = ["one", "two", "killed"]
    writers = {name: _writer(state.path, name, 100_000 if name == "killed" else 100) for name in names}
    try:
        for writer in writers.values():
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers.values():
            _told(writer, "go\n")
        killed = writers["killed"]
        assert killed.stdout is not None
        last = [int(killed.stdout.readline()) for _ in range(20)][-1]
        os.kill(killed.pid, signal.SIGKILL)
        for name in names[:2]:
            assert writers[name].wait(60) == 0
        killed.wait(60)
    finally:
        for writer in writers.values():
            writer.kill()
            writer.communicate()
    sent = [one.body or "" for one in state.items(SourceKind.HL7)]
    for name in names:
        numbers = [int(body.rpartition("-")[2]) for body in sent if body.startswith(f"{name}-")]
        assert numbers == list(range(len(numbers)))
        row = state.get(SourceKind.ROWS, f"last/{name}")
        assert row is not None
        assert row.body == str(numbers[-1]), "both parts of a change, or neither"
        assert len(numbers) > last if name == "killed" else len(numbers) == 100
    assert [one.key for one in state.items(SourceKind.HL7)] == [f"{number:06}" for number in range(1, len(sent) + 1)]


def test_the_weight_of_a_system_counts_what_was_kept_before(tmp_path: Path) -> None:
    state = PlaygroundState.create(tmp_path / "weighed.db")
    state.put(SourceKind.FILES, "a/1", b"12345", event="put")
    state.put(SourceKind.FILES, "a/1", b"123", event="put")
    state.put(SourceKind.FILES, "b", b"1", event="put")
    state.put(SourceKind.ROWS, "a/1", b"1", event="put")
    state.remove(SourceKind.FILES, "b", event="removed")
    assert (state.count(SourceKind.FILES), state.count(SourceKind.FILES, under="b")) == (1, 0)
    assert state.content_bytes(SourceKind.FILES) == 9
    assert {key: facts["size"] for key, facts in state.facts(SourceKind.FILES, under="a/").items()} == {"a/1": 3}


# Room.

QUOTA = 200_000
WISHES = st.lists(
    st.tuples(st.sampled_from(["put", "append", "remove", "log"]), KEYS, st.integers(0, 60_000)),
    min_size=5,
    max_size=25,
)


def wished(state: PlaygroundState, wish: str, key: str, size: int) -> None:
    match wish:
        case "put":
            state.put(SourceKind.FILES, key, bytes(size), event="file_put")
        case "append":
            state.append(SourceKind.HL7, bytes(size), event="hl7_outbound")
        case "remove":
            state.remove(SourceKind.FILES, key, event="file_removed")
        case _:
            state.log("x12_request", {"body": "x" * size})


@given(WISHES)
@settings(max_examples=10)
def test_a_playground_never_exceeds_its_quota(
    wishes: list[tuple[str, str, int]],
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(PlaygroundState.create(Path(folder) / "state.db", settings={"quota_bytes": QUOTA})) as state,
    ):
        state.checkpoint()
        for wish in wishes:
            before, told = (held(state), state.versions_count(SourceKind.FILES)), len(state.events())
            try:
                wished(state, *wish)
            except PlaygroundFull:
                assert (held(state), state.versions_count(SourceKind.FILES)) == before
                (refused,) = state.events()[told:]
                assert (refused.type, refused.facts["quota_bytes"]) == (REFUSED, QUOTA)
                assert state.used_bytes() <= QUOTA + SPARE_BYTES
            else:
                # What is told of refusals takes its own room, and nothing was there to remove.
                assert state.used_bytes() <= QUOTA or wish[0] == "remove"


def test_changes_that_do_not_fit_are_all_refused(state: PlaygroundState) -> None:
    state.set(quota_bytes=QUOTA)

    def both() -> None:
        with state.change():
            state.put(SourceKind.FILES, "small", b"x", event="file_put")
            state.put(SourceKind.FILES, "large", bytes(QUOTA), event="file_put")

    with pytest.raises(PlaygroundFull) as refused:
        both()
    assert (refused.value.quota_bytes, refused.value.what) == (QUOTA, "files large")
    assert held(state) == {}
    assert [event.type for event in state.events()] == [REFUSED]


def test_repeated_refusals_are_recorded_for_a_while(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meruit.playground.state, "SPARE_BYTES", 20_000)
    state.set(quota_bytes=state.used_bytes())
    for _ in range(500):
        with pytest.raises(PlaygroundFull):
            state.put(SourceKind.FILES, "large", bytes(100_000), event="file_put")
    assert 10 < len(state.events()) < 400


def test_a_checkpoint_that_does_not_fit_keeps_the_earlier(state: PlaygroundState) -> None:
    state.put(SourceKind.FILES, "a", bytes(100_000), event="file_put")
    state.checkpoint("early")
    used = state.used_bytes()
    assert used > 200_000
    state.set(quota_bytes=used + 50_000)
    # In place of itself it takes no more.
    state.checkpoint("early")
    with pytest.raises(PlaygroundFull, match="checkpoint other"):
        state.checkpoint("other")
    assert (state.checkpoints(), state.used_bytes()) == (["early"], used)
    with pytest.raises(PlaygroundFull):
        state.put(SourceKind.FILES, "b", bytes(60_000), event="file_put")
    state.reset("early")
    assert set(held(state)) == {(SourceKind.FILES, "a")}


def test_a_branch_has_the_room_of_what_it_comes_from(state: PlaygroundState, tmp_path: Path) -> None:
    state.set(quota_bytes=QUOTA)
    with closing(state.branch(tmp_path / "other" / "state.db")) as branched, pytest.raises(PlaygroundFull):
        branched.put(SourceKind.FILES, "a", bytes(QUOTA), event="file_put")
