"""A task's own source is read where its address says, as its author says, or refused with what to write."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.servers.lying import BASE, LyingFhir, resource
from tests.servers.running import Emulator, SshServer

from meruit.errors import AddressFault, AuthorError, InvalidAddress
from meruit.model.environment import Snapshot, SourceKind
from meruit.model.task import TaskSource
from meruit.sources.open import open_source

LOGIN = {"token_env": "PASSWORD", "known_hosts": "nobody knows"}
EVENTS = [
    {"type": name, "body": f"a {name}"} for name in ("hl7_outbound", "x12_response", "voice_turn", "something_else")
]


class Listening:
    """Answers everything with one document, and remembers what it was asked."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.asked: list[httpx.Request] = []

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return httpx.Response(200, json=self.document)


def unheard() -> httpx.AsyncClient:
    return Listening(None).client()


def read(
    kind: str,
    at: str,
    client: httpx.AsyncClient | None = None,
    environment: dict[str, str] | None = None,
    known: tuple[str, ...] = (),
    **others: Any,
) -> Snapshot:
    asked = TaskSource.model_validate({"kind": kind, "at": at, **others})
    source = open_source(asked, client=client or unheard(), environment=environment or {}, known=known)
    assert source.kind is asked.kind
    return asyncio.run(source.read())


def bodies(found: Snapshot) -> dict[str, bytes]:
    assert found.trouble is None
    return {one.key: one.content() for one in found.items}


def test_fhir_is_read_as_far_as_its_types_go() -> None:
    server = LyingFhir({"Patient": [resource("Patient", 1)], "Claim": [resource("Claim", 1)]})
    assert bodies(read("fhir", BASE, server.client())).keys() == {"Claim/1", "Patient/1"}
    assert bodies(read("fhir", BASE, server.client(), types=["Patient"])).keys() == {"Patient/1"}


def test_fhir_that_was_known_is_asked_for_by_its_id() -> None:
    server = LyingFhir({"Patient": []})
    assert bodies(read("fhir", BASE, server.client(), known=("Patient/9",), types=["Patient"])) == {}
    assert server.asked[-1].url == f"{BASE}/Patient/9"


def test_rows_are_identified_by_the_given_key() -> None:
    state = {"member": [{"id": "M1", "name": "A"}], "banner": {"text": {}}}
    found = read("rows", "http://app.test/state", Listening(state).client(), key="id", documents=["banner"])
    assert bodies(found).keys() == {"member/M1", "banner"}


@pytest.mark.parametrize(("kind", "wanted"), [("hl7", 0), ("x12", 1), ("voice", 2)])
def test_of_a_log_each_kind_takes_its_own_events(kind: str, wanted: int) -> None:
    found = read(kind, "https://app.test/events", Listening({"events": EVENTS}).client())
    assert bodies(found) == {"000001": EVENTS[wanted]["body"].encode()}


def test_a_token_comes_from_the_environment_or_a_command() -> None:
    server = Listening({"events": []})
    read("hl7", "https://app.test/e", server.client(), {"WORD": "sesame"}, token_env="WORD")
    printing = [sys.executable, "-c", "print('open')"]
    read("hl7", "https://app.test/e", server.client(), token_command=printing)
    read("hl7", "https://app.test/e", server.client())
    assert [one.headers.get("authorization") for one in server.asked] == ["Bearer sesame", "Bearer open", None]


def test_a_token_that_is_not_there_is_trouble_when_it_is_needed() -> None:
    assert "WORD" in str(read("hl7", "https://app.test/e", token_env="WORD").trouble)


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("", "https://storage.googleapis.com/"),
        ("127.0.0.1:9023", "http://127.0.0.1:9023/"),
        ("https://emulator.test", "https://emulator.test/"),
    ],
)
def test_a_bucket_is_googles_unless_there_is_an_emulator(host: str, asked: str) -> None:
    server = Listening({"items": []})
    assert bodies(read("files", "gs://b/out#1/?", server.client(), {"STORAGE_EMULATOR_HOST": host})) == {}
    (request,) = server.asked
    assert str(request.url).startswith(f"{asked}storage/v1/b/b/o?")
    assert request.url.params["prefix"] == "out#1/?/"


def test_a_bucket_is_read_below_its_prefix(gcs: Emulator) -> None:
    gcs.bucket("opening")
    for name in ("in/a", "out/b", "out/c d", "outer"):
        gcs.put("opening", name, name.encode())

    async def reading(at: str) -> Snapshot:
        asked = TaskSource(kind=SourceKind.FILES, at=at)
        async with httpx.AsyncClient(verify=False) as client:
            place = {"STORAGE_EMULATOR_HOST": gcs.endpoint.removeprefix("http://")}
            return await open_source(asked, client=client, environment=place).read()

    assert bodies(asyncio.run(reading("gs://opening/out"))) == {"b": b"out/b", "c d": b"out/c d"}
    assert bodies(asyncio.run(reading("gs://opening"))).keys() == {"in/a", "out/b", "out/c d", "outer"}


def test_a_folder_is_named_by_its_path_or_as_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "x").write_bytes(b"one")
    monkeypatch.chdir(tmp_path)
    quoted = str(folder).replace(" ", "%20")
    for at in (str(folder), "a b", f"file://{quoted}", f"file://localhost{quoted}", f"file:{quoted}"):
        assert bodies(read("files", at)) == {"x": b"one"}


def test_sftp_is_read_with_a_key(sshd: SshServer) -> None:
    root = sshd.root / "opened here"
    root.mkdir()
    (root / "x").write_bytes(b"one")
    at = f"sftp://{sshd.user}@127.0.0.1:{sshd.port}{str(root).replace(' ', '%20')}"
    environment = {"KEY": sshd.key, "PASSWORD": "no good"}
    said: dict[str, Any] = {"key_env": "KEY", "known_hosts": sshd.known_hosts}
    assert bodies(read("files", at, environment=environment, **said)) == {"x": b"one"}
    refused = read("files", at, environment=environment, token_env="PASSWORD", known_hosts=sshd.known_hosts)
    assert f" {sshd.user} " in str(refused.trouble)


def test_sftp_is_at_its_usual_port_unless_another_is_named() -> None:
    # Nobody is asked anything without a key that is one.
    said: dict[str, Any] = {"environment": {"KEY": "no key"}, "key_env": "KEY", "known_hosts": "h k"}
    for said_port, port in {"": 22, ":2022": 2022}.items():
        found = read("files", f"sftp://me@files.test{said_port}", **said)
        assert str(found.trouble).startswith(f"sftp://files.test:{port} ")


@pytest.mark.parametrize(
    ("kind", "at", "more", "fault"),
    [
        ("fhir", "gs://bucket/x", {}, AddressFault.SCHEME),
        ("fhir", "/some/folder", {}, AddressFault.SCHEME),
        ("fhir", "https://[ehr.test/fhir", {}, AddressFault.SCHEME),
        ("fhir", "https://ehr.test:99999/fhir", {}, AddressFault.SCHEME),
        ("fhir", "https://ehr.test/fhir?x=1", {}, AddressFault.QUERY),
        ("fhir", "https://me:secret@ehr.test/fhir", {}, AddressFault.CREDENTIALS),
        ("rows", "ftp://me:secret@app.test", {}, AddressFault.SCHEME),
        ("hl7", "mllp://app.test:2575", {}, AddressFault.SCHEME),
        ("x12", "sftp://me@files.test/x", LOGIN, AddressFault.SCHEME),
        ("voice", "call.test", {}, AddressFault.SCHEME),
        ("files", "https://files.test/x", {}, AddressFault.SCHEME),
        ("files", "gs:///prefix", {}, AddressFault.SCHEME),
        ("files", "file://outbound", {}, AddressFault.SCHEME),
        ("files", "file://files.test/outbound", {}, AddressFault.SCHEME),
        ("files", "file:///outbound#1", {}, AddressFault.SCHEME),
        ("files", "file:", {}, AddressFault.SCHEME),
        ("files", "sftp://me@files.test:99999/x", LOGIN, AddressFault.SCHEME),
        ("files", "sftp://files.test/x", LOGIN, AddressFault.LOGIN),
        ("files", "sftp://me@/x", LOGIN, AddressFault.LOGIN),
        ("files", "sftp://me:secret@files.test/x", LOGIN, AddressFault.LOGIN),
        ("files", "sftp://me@files.test/x", {"known_hosts": "h k"}, AddressFault.LOGIN),
        ("files", "sftp://me@files.test/x", {"key_env": "KEY"}, AddressFault.HOST_KEY),
        ("files", "sftp://me@files.test/x?y", LOGIN, AddressFault.QUERY),
        ("files", "sftp://me@files.test/x#y", LOGIN, AddressFault.QUERY),
    ],
)
def test_an_address_that_is_none_is_refused_with_what_to_write(
    kind: str, at: str, more: dict[str, Any], fault: AddressFault
) -> None:
    asked = TaskSource.model_validate({"kind": kind, "at": at, **more})
    with pytest.raises(InvalidAddress) as refused:
        open_source(asked, client=unheard(), environment={})
    assert refused.value.fault is fault
    assert "secret" not in str(refused.value)


def test_a_fhir_type_that_is_none_is_refused() -> None:
    asked = TaskSource.model_validate({"kind": "fhir", "at": BASE, "types": ["../x"]})
    with pytest.raises(AuthorError, match=r"'\.\./x'"):
        open_source(asked, client=unheard(), environment={})
