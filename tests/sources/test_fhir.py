"""A FHIR server is read whole or in trouble: whatever it says, no list is wrong without a word."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.lying import BASE, DATE, LyingFhir, behind, bundle, fhir, is_list, outcome, resource

from meruit.errors import AuthorError
from meruit.model.environment import Snapshot
from meruit.sources.credentials import SecretToken
from meruit.sources.fhir import FhirSource
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy, read_until_settled

TYPES = ["Observation"]


class Naps:
    """Sleeps no time at all, and remembers for how long."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken_s.append(seconds)

    def time(self) -> float:
        return sum(self.taken_s)


def policy(naps: Naps | None = None, **limits: Any) -> ReadPolicy:
    return ReadPolicy(limits=ReadLimits(**limits), sleep=naps or Naps())


def observations(number: int) -> dict[str, list[str]]:
    return {"Observation": [resource("Observation", place) for place in range(number)]}


def source(server: LyingFhir, types: list[str] | None = TYPES, **others: Any) -> FhirSource:
    return FhirSource(BASE, types, client=server.client(), **({"policy": policy()} | others))


def read(server: LyingFhir, types: list[str] | None = TYPES, **others: Any) -> Snapshot:
    return asyncio.run(source(server, types, **others).read())


def trouble(found: Snapshot) -> str:
    assert found.trouble is not None
    return found.trouble


def once(reply: Callable[[], httpx.Response], times: int = 1) -> Callable[[httpx.Request], httpx.Response | None]:
    """A lie that is told so many times."""
    told = count(1)
    return lambda request: reply() if next(told) <= times else None


# The rule: the items are all of them, or there is trouble.


@given(
    held=st.integers(0, 30),
    page=st.integers(1, 12),
    total=st.none() | st.integers(0, 40),
    links=st.integers(0, 8),
    dropped=st.sets(st.integers(0, 29), max_size=2),
)
def test_what_is_missing_is_never_missing_in_silence(
    held: int, page: int, total: int | None, links: int, dropped: set[int]
) -> None:
    # A server that has so many, drops some from its pages, claims any total, and gives up after some links.
    server = LyingFhir(observations(held))

    def lie(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params.get("_offset", 0))
        texts = [text for place, text in enumerate(server.held["Observation"]) if place not in dropped]
        more = start + page < held and start // page < links
        following = f"{BASE}/Observation?_offset={start + page}" if more else None
        return fhir(bundle(texts[start : start + page], total=total, following=following))

    server.lie = lie
    found = read(server)
    shown = {f"Observation/{place}" for place in range(held) if place not in dropped}
    if found.trouble is None and total is not None:
        assert len(found.items) >= total
    if total is not None and total >= held and len(found.items) < held:
        assert found.trouble is not None
    assert found.manifest().keys() <= shown


@pytest.mark.parametrize("number", [0, 1, 199, 200, 201, 1001])
def test_an_honest_server_is_read_whole(number: int) -> None:
    server = LyingFhir(observations(number), page=200)
    found = read(server)
    assert found.trouble is None
    assert len(found.items) == number
    pages = [one for one in found.reads if one.what.partition("?")[0] == f"{BASE}/Observation"]
    assert sum(one.items or 0 for one in pages) == number
    assert found.reads[-1].what.endswith(DATE)


def test_each_body_is_kept_as_it_was_sent() -> None:
    found = read(LyingFhir({"Observation": [resource("Observation", 7, 3)]}))
    (one,) = found.items
    assert (one.key, one.body) == ("Observation/7", resource("Observation", 7, 3))
    assert one.version.startswith("3-")
    assert one.body is not None
    assert '"value": 1.00}' in one.body


def test_no_filter_is_ever_sent() -> None:
    server = LyingFhir(observations(450), page=100)
    read(server)
    assert {key for request in server.asked for key in request.url.params} <= {"_count", "_offset"}


def test_content_decides_whether_a_version_changed() -> None:
    written = '{"resourceType": "Observation", "id": "1", "meta": {"versionId": "1"}, "status": "%s"}'
    turned = '{"status": "final", "meta": {"versionId": "1"}, "id": "1", "resourceType": "Observation"}'
    versions = [read(LyingFhir({"Observation": [text]})).items[0].version for text in (written % "final", turned)]
    assert versions[0] == versions[1]
    assert read(LyingFhir({"Observation": [written % "amended"]})).items[0].version != versions[0]


def test_without_a_version_the_digest_is_one() -> None:
    first = read(LyingFhir({"Observation": ['{"resourceType": "Observation", "id": "1"}']}))
    second = read(LyingFhir({"Observation": ['{"resourceType": "Observation", "id": "1", "status": "final"}']}))
    assert first.manifest().keys() == second.manifest().keys()
    assert first.manifest() != second.manifest()


# The lies of real servers.


def test_a_partial_list_without_a_next_link_is_incomplete() -> None:
    lie = fhir(bundle(observations(1000)["Observation"], total=2360))
    found = read(LyingFhir({"Observation": []}, lambda request: lie))
    assert trouble(found).startswith("incomplete_read: saw 1,000 of 2,360 Observation")


def test_an_estimated_total_counts_on_the_last_page_only() -> None:
    texts = observations(4)["Observation"]

    def lie(request: httpx.Request) -> httpx.Response:
        if "_page_token" in request.url.params:
            return fhir(bundle(texts[2:], total=4))
        return fhir(bundle(texts[:2], total=9999, following=f"{BASE}/Observation?_page_token=a%2Bb%3D"))

    server = LyingFhir({"Observation": []}, lie)
    found = read(server)
    assert found.trouble is None
    assert len(found.items) == 4
    assert str(server.asked[1].url).endswith("_page_token=a%2Bb%3D")


def test_a_total_on_the_first_page_only_counts() -> None:
    texts = observations(4)["Observation"]

    def lie(request: httpx.Request) -> httpx.Response:
        if "_offset" in request.url.params:
            return fhir(bundle(texts[2:]))
        return fhir(bundle(texts[:2], total=total, following=f"{BASE}/Observation?_offset=2"))

    total = 5
    assert "saw 4 of 5" in trouble(read(LyingFhir({"Observation": []}, lie)))
    total = 4
    assert read(LyingFhir({"Observation": []}, lie)).trouble is None


def test_what_was_asked_for_does_not_come_along() -> None:
    entry = f'{{"resource": {resource("Observation", 1)}, "search": {{"mode": "include"}}}}'
    text = f'{{"resourceType": "Bundle", "type": "searchset", "entry": [{entry}]}}'
    assert len(read(LyingFhir({}, lambda request: fhir(text))).items) == 1


def test_a_total_that_is_too_small_loses_nothing() -> None:
    lie = fhir(bundle(observations(5)["Observation"], total=2))
    found = read(LyingFhir({"Observation": []}, lambda request: lie))
    assert found.trouble is None
    assert len(found.items) == 5


def test_a_total_that_is_too_large_is_trouble() -> None:
    lie = fhir(bundle(observations(5)["Observation"], total=6))
    assert "saw 5 of 6" in trouble(read(LyingFhir({"Observation": []}, lambda request: lie)))


def test_a_full_page_without_total_and_link_is_counted() -> None:
    texts = observations(200)["Observation"]

    def lie(request: httpx.Request) -> httpx.Response:
        return fhir(bundle(texts, total=totals.get(request.url.params.get("_total"))))

    totals: dict[str | None, int] = {}
    server = LyingFhir({"Observation": []}, lie)
    assert trouble(read(server)).startswith("incomplete_read: ")
    assert [request.url.params.get("_total") for request in server.asked] == [None, "accurate"]
    totals["accurate"] = 201
    assert "saw 200 of 201" in trouble(read(LyingFhir({"Observation": []}, lie)))
    totals["accurate"] = 200
    assert read(LyingFhir({"Observation": []}, lie)).trouble is None


def test_a_full_page_with_too_small_a_total_is_counted() -> None:
    texts = observations(200)["Observation"]
    totals = {"accurate": 150}

    def lie(request: httpx.Request) -> httpx.Response:
        return fhir(bundle(texts, total=totals.get(request.url.params.get("_total", ""), 150)))

    # A number that is proved false proves nothing.
    assert trouble(read(LyingFhir({"Observation": []}, lie))).startswith("incomplete_read: ")
    totals["accurate"] = 200
    assert read(LyingFhir({"Observation": []}, lie)).trouble is None


def test_a_server_that_ignores_the_count_has_not_counted() -> None:
    texts = observations(200)["Observation"]

    def lie(request: httpx.Request) -> httpx.Response:
        return fhir(bundle([], total=0) if "_total" in request.url.params else bundle(texts))

    assert trouble(read(LyingFhir({"Observation": []}, lie))).startswith("incomplete_read: ")


def test_next_links_that_lead_in_a_circle() -> None:
    def lie(request: httpx.Request) -> httpx.Response:
        following = f"{BASE}/Observation?_offset={(int(request.url.params.get('_offset', 0)) + 1) % 3}"
        return fhir(bundle([], following=following))

    server = LyingFhir({"Observation": []}, lie)
    assert trouble(read(server)).startswith("incomplete_read: ")
    assert len(server.asked) == 4


def test_next_links_without_an_end() -> None:
    def lie(request: httpx.Request) -> httpx.Response:
        place = int(request.url.params.get("_offset", 0)) + 1
        return fhir(bundle([resource("Observation", place)], following=f"{BASE}/Observation?_offset={place}"))

    server = LyingFhir({"Observation": []}, lie)
    assert trouble(read(server, policy=policy(pages=7))).startswith("incomplete_read: ")
    assert len(server.asked) == 7
    assert "more than 5 items" in trouble(read(LyingFhir({"Observation": []}, lie), policy=policy(items=5)))


@pytest.mark.parametrize(
    "link",
    [
        "https://evil.test/fhir/Observation?_offset=1",
        "http://ehr.test/fhir/Observation?_offset=1",
        "https://ehr.test:444/fhir/Observation?_offset=1",
        "//evil.test/x",
        "https://user:pw@ehr.test/fhir",
        "https://ehr.test@evil.test/fhir",
        "file:///etc/passwd",
        "http://[",
        "https://ehr.test:99999/",
        "https://ehr.test/\x00",
    ],
)
def test_a_next_link_elsewhere_is_never_followed(link: str) -> None:
    server = LyingFhir({"Observation": []}, lambda request: fhir(bundle([], following=link)))
    found = read(server, token=SecretToken.from_value("s3cret"))
    assert "next link" in trouble(found)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "link", ["?_count=200&_offset=2", "/fhir/Observation?_offset=2", "https://EHR.test:443/fhir/Observation?_offset=2"]
)
def test_a_next_link_may_be_relative(link: str) -> None:
    def lie(request: httpx.Request) -> httpx.Response:
        if "_offset" in request.url.params:
            return fhir(bundle([resource("Observation", 2)], total=2))
        return fhir(bundle([resource("Observation", 1)], total=2, following=link))

    assert len(read(LyingFhir({"Observation": []}, lie)).items) == 2


def test_two_next_links_are_trouble() -> None:
    links = [{"relation": "next", "url": f"{BASE}/Observation?_offset={place}"} for place in (1, 2)]
    lie = fhir(bundle([], link=links))
    server = LyingFhir({"Observation": []}, lambda request: lie)
    assert "next link" in trouble(read(server))
    assert len(server.asked) == 1


def test_a_page_that_is_gone_in_the_middle_is_incomplete() -> None:
    def lie(request: httpx.Request) -> httpx.Response | None:
        return fhir(outcome("the page has expired"), 404) if "_offset" in request.url.params else None

    found = read(LyingFhir(observations(5), lie, page=2))
    assert trouble(found).startswith("incomplete_read: ")
    assert "the page has expired" in trouble(found)


def test_of_a_resource_seen_twice_the_newer_stays() -> None:
    old, new = resource("Observation", 1, 1), resource("Observation", 1, 2)
    for pages in ([old, new], [new, old]):

        def lie(request: httpx.Request, pages: list[str] = pages) -> httpx.Response:
            if "_offset" in request.url.params:
                return fhir(bundle(pages[1:], total=1))
            return fhir(bundle(pages[:1], total=1, following=f"{BASE}/Observation?_offset=1"))

        found = read(LyingFhir({"Observation": []}, lie))
        assert [(one.key, one.version.split("-")[0]) for one in found.items] == [("Observation/1", "2")]
    shifted = fhir(bundle([old, old], total=2))
    assert "saw 1 of 2" in trouble(read(LyingFhir({"Observation": []}, lambda request: shifted)))


def test_of_two_readings_without_a_date_the_later_one_stays() -> None:
    texts = [f'{{"resourceType": "Observation", "id": "1", "meta": {{"versionId": "{one}"}}}}' for one in "ab"]
    found = read(LyingFhir({"Observation": []}, lambda request: fhir(bundle(texts, total=1))))
    assert [one.version.split("-")[0] for one in found.items] == ["b"]


# A search that lags a write.


def test_a_lagging_search_is_read_until_it_settles() -> None:
    naps = Naps()
    server = LyingFhir(observations(3))
    missing = fhir(bundle(server.held["Observation"][:2], total=2))
    told = count(1)
    server.lie = lambda request: missing if is_list(request) and next(told) == 1 else None
    found = asyncio.run(read_until_settled(source(server), sleep=naps, timer=naps.time))
    assert found.trouble is None
    assert len(found.items) == 3
    assert next(told) == 4
    assert found.settled_after_ms == 4000


def test_an_unsettled_search_names_the_difference() -> None:
    naps, told = Naps(), count(1)
    server = LyingFhir({"Observation": []})
    server.lie = lambda request: (
        fhir(bundle([resource("Observation", 1, next(told))], total=1)) if is_list(request) else None
    )
    found = asyncio.run(read_until_settled(source(server), within_s=3, sleep=naps, timer=naps.time))
    assert trouble(found).startswith("unsettled: ")
    assert "(changed Observation/1)" in trouble(found)
    assert len([one for one in found.reads if "/Observation?" in one.what]) == 2


def test_what_was_known_and_is_listed_no_more_must_be_gone() -> None:
    server = LyingFhir(observations(3))
    known = ["Observation/0", "Observation/2", "Patient/1"]
    assert read(server, known=known).trouble is None
    lagging = fhir(bundle(server.held["Observation"][:2], total=2))
    server.lie = lambda request: lagging if request.url.path.endswith("/Observation") else None
    assert trouble(read(server, known=known)).startswith(f"unsettled: {BASE} still has Observation/2")
    server.held["Observation"].pop()
    found = read(server, known=known)
    assert found.trouble is None
    assert [one.status for one in found.reads if one.what.endswith("/2")] == [410]


def test_a_lag_that_passes_within_the_time_settles() -> None:
    naps, told = Naps(), count(1)
    server = LyingFhir(observations(2))
    lagging = fhir(bundle(server.held["Observation"][:1], total=1))
    server.lie = lambda request: lagging if request.url.path.endswith("/Observation") and next(told) <= 4 else None
    found = asyncio.run(read_until_settled(source(server, known=["Observation/1"]), sleep=naps, timer=naps.time))
    assert found.trouble is None
    assert len(found.items) == 2


def test_a_known_resource_that_cannot_be_asked_for_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LyingFhir({"Observation": []})
    server.lie = lambda request: fhir(outcome("not for you"), 403) if request.url.path.endswith("/1") else None
    assert "not for you" in trouble(read(server, known=["Observation/1"]))
    monkeypatch.setattr("meruit.sources.fhir.MAX_BY_ID", 1)
    assert "Observation/2, Observation/3" in trouble(read(server, known=["Observation/2", "Observation/3"]))


@pytest.mark.parametrize("versioned", [True, False])
def test_a_list_that_lags_behind_a_change_is_found_out(versioned: bool) -> None:
    def text(number: int, version: int = 1) -> str:
        return resource("Observation", number, version).replace("versionId", "versionId" if versioned else "source")

    honest = [text(1), text(2)]
    server = LyingFhir({"Observation": list(honest)})
    known = read(server).manifest()
    server.lie = behind(server)
    assert read(server, known=known).trouble is None
    server.held["Observation"][0] = text(1, version=2)
    assert trouble(read(server, known=known)).startswith(f"unsettled: {BASE} lists Observation/1")
    # Written otherwise and yet the same.
    server.held["Observation"] = [one.replace(": ", ":  ") for one in honest]
    assert read(server, known=known).trouble is None


def test_a_list_that_lags_behind_a_deletion_is_found_out() -> None:
    server = LyingFhir(observations(3))
    known = read(server).manifest()
    server.lie = behind(server)
    server.held["Observation"].pop()
    assert trouble(read(server, known=known)).startswith(f"unsettled: {BASE} lists Observation/2")
    server.lie = None
    assert read(server, known=known).trouble is None


def by_id(server: LyingFhir) -> int:
    return sum("/Observation/" in request.url.path for request in server.asked)


def test_unchecked_lists_of_a_large_store_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LyingFhir(observations(3))
    known = read(server).manifest()
    first = read(server, known=known)
    assert by_id(server) == 3
    monkeypatch.setattr("meruit.sources.fhir.MAX_BY_ID", 2)
    found = read(server, known=known)
    assert by_id(server) == 3
    noted = [[one.what for one in each.reads if one.what.startswith("3 resources")] for each in (first, found)]
    assert [*map(len, noted)] == [1, 1]
    assert noted[0] != noted[1]


# Doors.


def test_a_refused_token_is_fetched_again_once() -> None:
    values = iter(["stale", "fresh"])

    async def fetch() -> str:
        return next(values)

    server = LyingFhir(observations(1))
    server.lie = lambda request: (
        fhir(outcome("expired: stale"), 401) if request.headers["authorization"] != "Bearer fresh" else None
    )
    found = read(server, token=SecretToken("the test's token", fetch))
    assert found.trouble is None
    assert [one.status for one in found.reads if one.status] == [200, 401, 200]


def test_a_token_is_renewed_once_per_reading() -> None:
    fetched = 0

    async def fetch() -> str:
        nonlocal fetched
        fetched += 1
        await asyncio.sleep(0)
        return "stale" if fetched == 1 else "fresh"

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        if request.headers["authorization"] == "Bearer stale":
            return fhir(outcome("expired"), 401)
        return fhir(bundle([], total=0))

    async def tried() -> Snapshot:
        client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        types = [f"Type{number}" for number in range(20)]
        return await FhirSource(
            BASE, types, client=client, token=SecretToken("a test's", fetch), policy=policy()
        ).read()

    assert asyncio.run(tried()).trouble is None
    assert fetched == 2


def test_the_same_token_is_not_tried_twice() -> None:
    server = LyingFhir(observations(1), lambda request: fhir("", 401))
    assert "status 401" in trouble(read(server, token=SecretToken.from_value("s3cret")))
    assert len(server.asked) == 1


def test_a_token_that_stays_refused_is_not_shown() -> None:
    values = (f"tok-{number}" for number in count())

    async def fetch() -> str:
        return next(values)

    server = LyingFhir(observations(1))
    server.lie = lambda request: fhir(outcome(request.headers["authorization"]), 401)
    found = read(server, token=SecretToken("the test's token", fetch))
    assert "status 401" in trouble(found)
    assert "the test's token" in trouble(found)
    assert len(server.asked) == 2
    assert "tok-" not in found.to_json().decode()
    assert "status 401" in trouble(read(server.__class__({}, lambda request: fhir("", 401))))


def test_a_token_quoted_by_the_server_is_not_shown() -> None:
    server = LyingFhir({}, lambda request: fhir(outcome(f"bad header {request.headers['authorization']}"), 403))
    found = read(server, token=SecretToken.from_value("s3cret/+="))
    assert "bad header Bearer ***" in trouble(found)
    assert "s3cret" not in found.to_json().decode()


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "tök"])
def test_a_token_invalid_in_a_header_is_not_shown(value: str) -> None:
    server = LyingFhir(observations(1))
    found = read(server, token=SecretToken.from_value(value))
    assert "a given token" in trouble(found)
    assert value not in trouble(found)
    assert not server.asked


# Weather.


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_server_that_recovers_is_read(status: int) -> None:
    naps = Naps()
    found = read(LyingFhir(observations(2), once(lambda: fhir("", status), 2)), policy=policy(naps))
    assert found.trouble is None
    assert naps.taken_s == [0.2, 0.4]


def test_a_server_that_does_not_recover_is_trouble() -> None:
    server = LyingFhir(observations(2), lambda request: fhir(outcome("the disk is full"), 500))
    found = read(server)
    assert "status 500" in trouble(found)
    assert "the disk is full" in trouble(found)
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        ("3", [3.0]),
        ("0", [0.0]),
        ("Tue, 15 Nov 2022 08:12:36 GMT", [5.0]),
        ("Tue, 15 Nov 2022 08:00:00 GMT", [0.0]),
        ("soon", [0.2]),
        ("-1", [0.2]),
    ],
)
def test_a_wait_that_the_server_asks_for_is_kept(asked: str, waited: list[float]) -> None:
    naps = Naps()
    lie = once(lambda: fhir("", 429, **{"Retry-After": asked}))
    assert read(LyingFhir(observations(1), lie), policy=policy(naps)).trouble is None
    assert naps.taken_s == waited


def test_a_wait_that_is_too_long_is_trouble_at_once() -> None:
    naps = Naps()
    lie = once(lambda: fhir("", 503, **{"Retry-After": "3600"}))
    assert "3,600 s" in trouble(read(LyingFhir(observations(1), lie), policy=policy(naps)))
    assert naps.taken_s == []


def test_a_redirect_is_not_followed() -> None:
    server = LyingFhir({}, lambda request: httpx.Response(302, headers={"Location": "https://evil.test/"}))
    found = read(server, token=SecretToken.from_value("s3cret"))
    assert "status 302" in trouble(found)
    assert "https://evil.test/" in trouble(found)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (httpx.Response(200, html="<html><head><title>Sign in</title></head>"), "it says: Sign in"),
        (httpx.Response(200, text="<p>down for <b>maintenance</b></p>"), "it says: down for maintenance"),
        (httpx.Response(200, text="hello"), "JSON"),
        (httpx.Response(200, content=b""), "JSON"),
        (httpx.Response(200, content=b'{"a": "\xff"}'), "byte 7;"),
        (httpx.Response(200, text=bundle(["{}"], total=1)[:-9]), "JSON"),
        (httpx.Response(200, text="[]"), "JSON"),
        (httpx.Response(200, text="[" * 100_000), "nested too deeply"),
        (fhir(outcome("no such parameter")), "it says: no such parameter"),
        (
            fhir('{"resourceType": "OperationOutcome", "issue": [{"code": "login"}, 3]}'),
            "it says: login; ",
        ),
        (
            httpx.Response(200, json={"error": {"code": 404, "message": "store is gone", "status": "NOT_FOUND"}}),
            "it says: NOT_FOUND: store is gone",
        ),
        (httpx.Response(403, json={"error": "forbidden"}), "(it says: forbidden)"),
        (httpx.Response(403, json={"name": "Jane Doe"}), "status 403;"),
        (fhir(resource("Patient", 1)), "it says: a Patient"),
        (fhir(bundle([], type="history")), "search"),
        (fhir(bundle([], total="7")), "`total`"),
        (fhir(bundle([], total=-1)), "`total`"),
        (fhir('{"resourceType": "Bundle", "type": "searchset", "entry": {}}'), "`entry`"),
        (fhir('{"resourceType": "Bundle", "type": "searchset", "entry": [{}]}'), "an entry"),
        (fhir(bundle(['{"resourceType": "Observation"}'])), "an entry"),
        (fhir(bundle(['{"resourceType": "Observation", "id": ""}'])), "among Observation"),
        (fhir(bundle([resource("Patient", 1)])), "Patient/1 among Observation"),
        (fhir(bundle([outcome("a shard is down")])), "a shard is down"),
        (
            fhir(bundle(['{"resourceType": "Observation", "id": "1", "meta": {"tag": [{"code": "SUBSETTED"}]}}'])),
            "incomplete_read: ",
        ),
    ],
)
def test_what_is_no_search_result_is_trouble(reply: httpx.Response, words: str) -> None:
    lie = httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)
    server = LyingFhir(
        observations(1), lambda request: httpx.Response(lie.status_code, headers=lie.headers, content=lie.content)
    )
    found = read(server)
    assert words in trouble(found)
    assert "Jane Doe" not in trouble(found)


def test_what_only_comes_along_is_not_an_item() -> None:
    included = f'{{"resource": {resource("Patient", 9)}, "search": {{"mode": "include"}}}}'
    warning = f'{{"resource": {outcome("slow today", "warning")}}}'
    mine = f'{{"resource": {resource("Observation", 1)}, "search": {{"mode": "match"}}}}'
    text = f'{{"resourceType": "Bundle", "type": "searchset", "total": 1, "entry": [{included},{warning},{mine}]}}'
    found = read(LyingFhir({}, lambda request: fhir(text)))
    assert found.trouble is None
    assert found.manifest().keys() == {"Observation/1"}


@pytest.mark.parametrize("problem", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.ReadError("cut")])
def test_a_broken_connection_is_tried_again(problem: httpx.HTTPError) -> None:
    def broken() -> httpx.Response:
        raise problem

    assert read(LyingFhir(observations(1), once(broken))).trouble is None
    server = LyingFhir(observations(1), once(broken, 3))
    assert f"{BASE}/Observation" in trouble(read(server))
    assert len(server.asked) == 3


def test_a_reply_without_end_is_trouble() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1000

    server = LyingFhir({}, lambda request: httpx.Response(200, content=endless()))
    assert trouble(read(server, policy=policy(reply_bytes=5000))).startswith("incomplete_read: ")
    assert trouble(read(server, policy=policy(bytes_total=5000))).startswith("incomplete_read: ")


# Types.


def test_without_types_all_that_can_be_searched_are_read() -> None:
    held = {"Patient": [resource("Patient", 1)], "Observation": [resource("Observation", 1)], "Account": []}
    found = read(LyingFhir(held), None)
    assert found.trouble is None
    assert list(found.manifest()) == ["Observation/1", "Patient/1"]
    assert any("of Binary" in one.what for one in found.reads)


def test_a_type_that_the_server_declares_not_to_have_is_empty() -> None:
    found = read(LyingFhir(observations(1)), ["Observation", "Claim"])
    assert found.trouble is None
    assert found.manifest().keys() == {"Observation/0"}
    assert any("declares no Claim" in one.what for one in found.reads)


def test_a_type_that_is_declared_and_refused_is_trouble() -> None:
    server = LyingFhir(observations(1))
    server.lie = lambda request: fhir(outcome("bad search"), 400) if "Observation" in request.url.path else None
    assert "status 400 (it says: bad search)" in trouble(read(server))


@pytest.mark.parametrize(
    "statement", ['{"resourceType": "CapabilityStatement"}', '{"resourceType": "CapabilityStatement", "rest": [3]}']
)
def test_a_server_without_declared_types_needs_types(statement: str) -> None:
    assert "give `types`" in trouble(read(LyingFhir({}, lambda request: fhir(statement)), None))


def test_a_base_url_that_is_no_servers_is_trouble() -> None:
    lie = httpx.Response(404, json={"error": {"code": 404, "message": "not found", "status": "NOT_FOUND"}})
    assert "NOT_FOUND" in trouble(read(LyingFhir({}, lambda request: httpx.Response(404, content=lie.content))))
    assert "no CapabilityStatement" in trouble(read(LyingFhir({}, lambda request: fhir(bundle([]))), None))


def test_after_the_first_trouble_no_other_type_is_asked_for() -> None:
    server = LyingFhir({}, lambda request: fhir("", 403))
    read(server, [f"Type{number}" for number in range(50)])
    assert len(server.asked) <= 8


@pytest.mark.parametrize(
    "url",
    [
        "ehr.test/fhir",
        "ftp://ehr.test",
        "https://u:p@ehr.test",
        "https://",
        "https://a?b=c",
        "https://a:99999/",
        "https://a\x00/",
    ],
)
def test_what_is_no_base_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(AuthorError):
        FhirSource(url, client=httpx.AsyncClient(verify=False))


def test_what_is_no_type_is_refused_at_once() -> None:
    with pytest.raises(AuthorError, match="Patient"):
        FhirSource(BASE, ["../metadata"], client=httpx.AsyncClient(verify=False))


# Over a socket, what only a socket can do.


async def over_a_socket(
    speak: Callable[[asyncio.StreamWriter], Awaitable[None]], within_s: float = 5.0
) -> tuple[Snapshot, int]:
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        try:
            await reader.readuntil(b"\r\n\r\n")
            await speak(writer)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, httpx.AsyncClient(verify=False) as client:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/fhir"
        limits = ReadPolicy(BackoffSchedule(tries=2), ReadLimits(timeout_s=within_s), Naps())
        found = await FhirSource(url, TYPES, client=client, policy=limits).read()
        await asyncio.gather(*(task for task in serving if task is not None))
        return found, len(serving)


def test_half_a_body_is_trouble() -> None:
    whole = bundle(observations(3)["Observation"], total=3).encode()

    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole[: len(whole) // 2])
        await writer.drain()

    found, calls = asyncio.run(over_a_socket(speak))
    assert "RemoteProtocolError" in trouble(found)
    assert calls == 2


def test_a_server_that_trickles_is_given_up() -> None:
    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    found, calls = asyncio.run(over_a_socket(speak, within_s=0.1))
    assert " 0.1 s;" in trouble(found)
    assert calls == 2


def test_a_whole_reading_has_an_end() -> None:
    async def slow(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        raise AssertionError

    async def tried() -> Snapshot:
        client = httpx.AsyncClient(transport=httpx.MockTransport(slow))
        return await FhirSource(BASE, TYPES, client=client, policy=policy(read_s=0.05)).read()

    assert " 0.05 s;" in trouble(asyncio.run(tried()))
