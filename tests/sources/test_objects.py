"""Files of a folder and objects of a bucket."""

import asyncio
import base64
import gzip
import hashlib
import os
import re
import socket
import threading
from itertools import count
from pathlib import Path
from typing import Any

import google_crc32c
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.running import Emulator

from meruit.errors import AuthorError
from meruit.model.environment import Encoding, Snapshot
from meruit.sources import file_items as files
from meruit.sources import objects
from meruit.sources.credentials import SecretToken
from meruit.sources.objects import FolderSource, GcsSource, crc32c
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy

ONCE = ReadPolicy(retry=BackoffSchedule(tries=1))
HELD = {"a.txt": b"one", "out/b.json": b'{"v": 1.00}', "out/deep/c.bin": bytes(range(256)), "out/empty": b""}


async def no_sleep(seconds: float) -> None: ...


def filled(root: Path, held: dict[str, bytes]) -> Path:
    for path, content in held.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return root


def folder(path: Path, prefix: str = "", policy: ReadPolicy = ONCE) -> Snapshot:
    return asyncio.run(FolderSource(path, prefix, policy=policy).read())


def trouble(found: Snapshot) -> str:
    assert found.trouble is not None
    return found.trouble


# A folder here.


def test_every_file_is_read(tmp_path: Path) -> None:
    found = folder(filled(tmp_path, HELD))
    assert found.trouble is None
    assert {one.key: one.content() for one in found.items} == HELD
    assert found.manifest() == {path: hashlib.sha256(content).hexdigest() for path, content in HELD.items()}
    assert [one.facts["size"] for one in found.items] == [3, 11, 256, 0]


def test_a_prefix_is_a_folder_and_keys_are_relative_to_it(tmp_path: Path) -> None:
    found = folder(filled(tmp_path, {**HELD, "outside": b""}), "out/")
    assert list(found.manifest()) == ["b.json", "deep/c.bin", "empty"]
    missing = folder(tmp_path, "out/nowhere")
    assert (missing.trouble, missing.items) == (None, [])
    assert "no folder out/nowhere" in missing.reads[0].what


@pytest.mark.parametrize("prefix", ["../x", "/etc", "out/../../x"])
def test_a_prefix_stays_below_the_root(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(AuthorError, match=re.escape(repr(prefix))):
        FolderSource(tmp_path, prefix)


def test_a_root_that_is_not_there_is_trouble_not_emptiness(tmp_path: Path) -> None:
    assert "nowhere" in trouble(folder(tmp_path / "nowhere"))
    (tmp_path / "file").touch()
    assert "Not a directory" in trouble(folder(tmp_path / "file"))


def test_links_and_special_files_are_noted_and_left(tmp_path: Path) -> None:
    root = filled(tmp_path / "root", {"a": b"one"})
    filled(tmp_path / "secrets", {"key": b"secret"})
    (root / "file").symlink_to("/etc/passwd")
    (root / "dir").symlink_to(tmp_path / "secrets")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
        found = folder(root)
    assert found.trouble is None
    assert list(found.manifest()) == ["a"]
    noted = {one.what.partition(" is ")[0] for one in found.reads[:-1]}
    assert noted == {"file", "dir", "loop", "pipe", "socket"}
    assert folder(root, "dir").items == []


def test_a_name_that_is_no_text_has_a_key_all_the_same(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/n\xff", "wb") as file:  # noqa: PTH123 -- a path of bytes
        file.write(b"one")
    assert list(folder(tmp_path).manifest()) == ["n\\xff"]
    filled(tmp_path, {"n\\xff": b"two"})
    assert "n\\xff;" in trouble(folder(tmp_path))


def test_a_large_file_is_hashed_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(objects, "CHUNK_BYTES", 300)
    big, small = folder(filled(tmp_path, {"big": b"x" * 1001, "small": b"x" * 1000})).items
    assert (big.encoding, big.body, big.facts["size"]) == (Encoding.LEFT, None, 1001)
    assert big.version == hashlib.sha256(b"x" * 1001).hexdigest()
    assert small.content() == b"x" * 1000


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path, {"a": b"one"}) / "a"
    real, times = os.fstat, count(1)

    def fstat(opened: int) -> os.stat_result:
        # Somebody writes just after the reading began.
        found = real(opened)
        if next(times) in changes:
            path.write_bytes(path.read_bytes() + b"!")
        return found

    monkeypatch.setattr(os, "fstat", fstat)
    changes = {1}
    found = folder(tmp_path, policy=ReadPolicy(sleep=no_sleep))
    assert found.trouble is None
    assert found.items[0].content() == b"one!"
    changes = set(range(100))
    assert trouble(folder(tmp_path, policy=ReadPolicy(sleep=no_sleep))).startswith("unsettled: a changed")


@pytest.mark.parametrize(("name", "target"), [("a", "/etc/passwd"), ("a", None), ("d", "/etc"), ("d", "/nowhere")])
def test_a_file_swapped_before_it_is_opened_is_unsettled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str | None
) -> None:
    root = filled(tmp_path / "root", {"a": b"one", "d/b": b"two"})
    place = root / name
    real = os.open

    def opening(path: Any, *others: Any, **more: Any) -> int:
        if path == name.encode():
            place.rename(tmp_path / "was")
            place.mkdir() if target is None else place.symlink_to(target)
        return real(path, *others, **more)

    monkeypatch.setattr(os, "open", opening)
    found = folder(root)
    assert trouble(found).startswith(f"unsettled: {name} changed")
    assert {one.content() for one in found.items} <= {b"one", b"two"}


def test_a_file_that_vanishes_after_listing_is_unsettled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, {"a": b"one"})
    monkeypatch.setattr(objects, "_names", lambda opened: [b"a", b"b"])
    assert trouble(folder(tmp_path)).startswith("unsettled: b changed")


def test_what_may_not_be_read_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, {"d/a": b"one"})

    def refusing(name: bytes, flags: int, opened: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(objects, "_open_below", refusing)
    assert "Permission denied" in trouble(folder(tmp_path))
    assert "Permission denied" in trouble(folder(tmp_path, "d"))


def test_limits_are_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, {"a": b"one", "b": b"two", "c/d/e": b"three"})
    few = folder(tmp_path, policy=ReadPolicy(BackoffSchedule(tries=1), ReadLimits(items=1)))
    short = folder(tmp_path, policy=ReadPolicy(BackoffSchedule(tries=1), ReadLimits(bytes_total=4)))
    monkeypatch.setattr(objects, "MAX_DEPTH", 1)
    for found in (few, short, folder(tmp_path)):
        assert trouble(found).startswith("incomplete_read: ")


def test_a_folder_swapped_for_a_link_shows_nothing_outside(tmp_path: Path) -> None:
    root = filled(tmp_path / "root", {"in/a": b"inside"})
    filled(tmp_path / "out", {"a": b"outside"})
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "in").rename(root / "was")
            (root / "in").symlink_to(tmp_path / "out")
            (root / "in").unlink()
            (root / "was").rename(root / "in")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        seen = {one.content() for _ in range(200) for one in folder(root).items}
    finally:
        stop.set()
        swapping.join()
    assert seen <= {b"inside"}


# A bucket.

_buckets = count()


@pytest.fixture
def bucket(gcs: Emulator) -> str:
    name = f"bucket{next(_buckets)}"
    gcs.bucket(name)
    return name


def objects_of(endpoint: str, bucket: str, prefix: str = "", **others: Any) -> Snapshot:
    async def reading() -> Snapshot:
        async with httpx.AsyncClient(verify=False) as client:
            given = {"client": client, "policy": ONCE, **others}
            return await GcsSource(bucket, prefix, endpoint=endpoint, **given).read()

    return asyncio.run(reading())


def test_every_object_below_a_prefix_is_read(gcs: Emulator, bucket: str) -> None:
    for name, content in HELD.items():
        gcs.put(bucket, f"sandbox-1/{name}", content)
    gcs.put(bucket, "sandbox-10/other", b"somebody else's")
    for prefix in ("sandbox-1", "sandbox-1/"):
        found = objects_of(gcs.endpoint, bucket, prefix)
        assert found.trouble is None
        assert {one.key: one.content() for one in found.items} == HELD
        assert found.items[0].facts["modified"]
    assert len(objects_of(gcs.endpoint, bucket).items) == 5
    assert objects_of(gcs.endpoint, bucket, "nowhere").items == []


def test_names_of_all_kinds_are_fetched(gcs: Emulator, bucket: str) -> None:
    names = ["with space", "ü/größe", "a?b&c=d", "per%cent", "plus+", "a#b"]
    for name in names:
        gcs.put(bucket, name, name.encode())
    found = objects_of(gcs.endpoint, bucket)
    assert found.trouble is None
    assert {one.key: one.content().decode() for one in found.items} == {name: name for name in names}


def test_a_bucket_that_is_not_there_is_trouble(gcs: Emulator) -> None:
    assert "status 404" in trouble(objects_of(gcs.endpoint, "nowhere"))


def listed(name: str, content: bytes, **others: Any) -> dict[str, Any]:
    digest = base64.b64encode(hashlib.md5(content).digest()).decode()
    return {"name": name, "size": str(len(content)), "generation": "7", "md5Hash": digest, **others}


def media(content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """A reply whose body comes as it is sent."""
    return httpx.Response(200, stream=httpx.ByteStream(content), headers=headers)


def served(pages: list[dict[str, Any]], held: dict[str, bytes], **others: Any) -> Snapshot:
    """What is read from a bucket with these pages of its list."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/o"):
            return httpx.Response(200, json=pages[int(request.url.params.get("pageToken", 0))])
        content = held.get(request.url.path.rpartition("/o/")[2])
        return httpx.Response(404) if content is None else media(content)

    async def reading() -> Snapshot:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            given = {"policy": ONCE, **others}
            return await GcsSource("b", client=client, **given).read()

    return asyncio.run(reading())


def test_all_pages_of_the_list_are_read() -> None:
    held = {f"f{place}": b"x" * place for place in range(5)}
    pages = [
        {"items": [listed(name, content)], "nextPageToken": str(place + 1)}
        for place, (name, content) in enumerate(held.items())
    ]
    found = served([*pages, {}], held)
    assert found.trouble is None
    assert {one.key: one.content() for one in found.items} == held


def test_a_folder_placeholder_is_noted() -> None:
    found = served([{"items": [listed("d/", b""), listed("d/a", b"1")]}], {"d/a": b"1"})
    assert list(found.manifest()) == ["d/a"]
    assert "d/ " in found.reads[0].what + found.reads[1].what


def test_pages_without_end_are_trouble() -> None:
    circle = [{"nextPageToken": "1"}, {"nextPageToken": "1"}]
    assert trouble(served(circle, {})).startswith("incomplete_read: ")
    endless = [{"nextPageToken": str(place + 1)} for place in range(9)]
    assert "more than 5 pages" in trouble(
        served(endless, {}, policy=ReadPolicy(BackoffSchedule(tries=1), ReadLimits(pages=5)))
    )
    many = [{"items": [listed(str(place), b"") for place in range(9)]}]
    assert "more than 5 objects" in trouble(
        served(many, {}, policy=ReadPolicy(BackoffSchedule(tries=1), ReadLimits(items=5)))
    )


@pytest.mark.parametrize("sent", [b"two", b"on", b"ones", b""])
def test_content_that_is_not_what_was_listed_is_trouble(sent: bytes) -> None:
    assert " 3 " in trouble(served([{"items": [listed("a", b"one")]}], {"a": sent}))


def test_an_object_without_md5_is_known_by_its_other_sum() -> None:
    right = listed("a", b"one", md5Hash=None, crc32c=base64.b64encode(crc32c(b"one").to_bytes(4, "big")).decode())
    assert served([{"items": [right]}], {"a": b"one"}).trouble is None
    assert served([{"items": [right]}], {"a": b"two"}).trouble is not None
    bare = listed("a", b"one", md5Hash=None)
    assert served([{"items": [bare]}], {"a": b"one"}).trouble is None


def test_a_packed_object_is_read_as_it_was_stored() -> None:
    stored = gzip.compress(b"one")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/o"):
            return httpx.Response(200, json={"items": [listed("a", stored)]})
        # As Google does with an object whose content is packed.
        if "gzip" in request.headers["accept-encoding"]:
            return media(stored, {"Content-Encoding": "gzip"})
        return media(b"one")

    async def reading() -> Snapshot:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            return await GcsSource("b", client=client, policy=ONCE).read()

    found = asyncio.run(reading())
    assert found.trouble is None
    assert found.items[0].content() == stored


@given(st.binary())
def test_the_sum_is_googles(content: bytes) -> None:
    assert crc32c(content) == google_crc32c.value(content)


def test_an_object_that_is_gone_in_between_is_unsettled() -> None:
    assert trouble(served([{"items": [listed("a", b"one")]}], {})).startswith("unsettled: ")


@pytest.mark.parametrize(
    "page", [[], {"items": 3}, {"items": [{"name": "a"}]}, {"items": [{"size": "x", "name": "a"}]}]
)
def test_what_is_no_list_is_trouble(page: Any) -> None:
    assert "JSON" in trouble(served([page], {}))


def test_an_object_that_may_not_be_read_is_trouble() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer s3cret"
        if request.url.path.endswith("/o"):
            return httpx.Response(200, json={"items": [listed("a", b"one")]})
        return httpx.Response(403)

    async def reading() -> Snapshot:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            return await GcsSource("b", client=client, token=SecretToken.from_value("s3cret"), policy=ONCE).read()

    assert "status 403" in trouble(asyncio.run(reading()))
