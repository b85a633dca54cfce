"""A search that lags behind is found out by the server's history; where there is none, it is waited for, and told."""

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.lying import BASE, LyingFhir, behind, deleted, fhir, history, outcome, resource, written

from meruit.model.environment import Snapshot
from meruit.playground.fhir import app as playground
from meruit.playground.state import PlaygroundState
from meruit.sources import fhir as fhir_source
from meruit.sources.fhir import LAG_S, FhirSource
from meruit.sources.retry import ReadLimits, ReadPolicy, read_until_settled

KEPT = ["history-type", "history-system"]
WAITING = "no complete history"


class Naps:
    """Sleeps no time at all, and keeps time by that."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken_s.append(seconds)

    def time(self) -> float:
        return sum(self.taken_s)


def flags(*numbers: int) -> dict[str, list[str]]:
    return {"Flag": [resource("Flag", number) for number in numbers]}


def source(server: LyingFhir, **others: Any) -> FhirSource:
    policy = ReadPolicy(limits=ReadLimits(**others.pop("limits", {})), sleep=Naps())
    return FhirSource(BASE, others.pop("types", ["Flag"]), client=server.client(), policy=policy, **others)


def read(server: LyingFhir, **others: Any) -> Snapshot:
    return asyncio.run(source(server, **others).read())


def rest(server: LyingFhir, within_s: float = 30.0, **others: Any) -> tuple[Snapshot, Naps]:
    naps = Naps()
    return asyncio.run(
        read_until_settled(source(server, **others), within_s=within_s, sleep=naps, timer=naps.time)
    ), naps


def told(found: Snapshot) -> str:
    return "\n".join(one.what for one in found.reads)


def of_history(said: Callable[[httpx.Request], httpx.Response]) -> Callable[[httpx.Request], httpx.Response | None]:
    return lambda request: said(request) if request.url.path.endswith("_history") else None


# The rule: lists that are behind are never believed.


@given(
    deeds=st.lists(st.tuples(st.sampled_from(["write", "delete"]), st.integers(0, 4)), max_size=8),
    frozen=st.integers(0, 8),
    keeps=st.sampled_from(KEPT),
    page=st.integers(1, 6),
    is_known=st.booleans(),
)
def test_a_list_is_used_only_if_it_is_complete(
    deeds: list[tuple[str, int]], frozen: int, keeps: str, page: int, is_known: bool
) -> None:
    server = LyingFhir(flags(0, 1), page=page, keeps=keeps)
    known = read(server).manifest()
    versions = dict.fromkeys(range(5), 1)
    lie = behind(server)
    shown = list(server.held["Flag"])
    for place, (deed, number) in enumerate(deeds):
        held = [text for text in server.held["Flag"] if json.loads(text)["id"] != str(number)]
        versions[number] += 1
        server.held["Flag"] = held if deed == "delete" else [*held, resource("Flag", number, versions[number])]
        server.answer(httpx.Request("GET", f"{BASE}/metadata"))
        if place < frozen:
            lie, shown = behind(server), list(server.held["Flag"])
    server.lie = lie
    found = read(server, known=known if is_known else ())
    if sorted(shown) == sorted(server.held["Flag"]):
        assert found.trouble is None
        assert WAITING not in told(found)
    else:
        assert found.trouble is not None
        assert found.trouble.startswith("unsettled: ")
    server.lie = None
    assert read(server, known=known).trouble is None


@pytest.mark.parametrize("keeps", KEPT)
def test_a_creation_missing_in_the_search_is_noticed(keeps: str) -> None:
    server = LyingFhir(flags(), keeps=keeps)
    server.lie = behind(server)
    server.held["Flag"].append(resource("Flag", 1))
    found, naps = rest(server)
    assert (found.trouble or "").startswith(f"unsettled: {BASE} still has Flag/1")
    assert naps.time() == 30


@pytest.mark.parametrize("keeps", KEPT)
def test_a_creation_that_the_search_shows_late_is_waited_for(keeps: str) -> None:
    server = LyingFhir(flags(), keeps=keeps)
    server.lie = behind(server, lists=7)
    server.held["Flag"].append(resource("Flag", 1))
    found, naps = rest(server)
    assert found.trouble is None
    assert found.manifest().keys() == {"Flag/1"}
    # Seven lists that lag, and two that agree: a history needs no longer wait between them.
    assert naps.taken_s == [0.5] * 8


@pytest.mark.parametrize("left", [[], [resource("Flag", 1, version=2)]])
def test_the_history_alone_finds_a_change_and_a_deletion(left: list[str]) -> None:
    server = LyingFhir(flags(1), keeps="history-type")
    read(server)
    server.lie = behind(server)
    server.held["Flag"] = left
    found = read(server)
    assert found.trouble is not None
    assert found.trouble.startswith(f"unsettled: {BASE} lists Flag/1")


def test_the_playgrounds_server_has_a_complete_history(tmp_path: Path) -> None:
    async def reading(state: PlaygroundState) -> tuple[Snapshot, Snapshot]:
        app = playground.app({"p": state}.get, base=lambda _: url)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as client:

            async def act(method: str, path: str) -> None:
                kind, _, id_ = path.partition("/")
                (
                    await client.request(method, f"{url}/{path}", json={"resourceType": kind, "id": id_})
                ).raise_for_status()

            for number in range(250):
                await act("PUT", f"Flag/{number}")
            before = await FhirSource(url, ["Flag", "Task"], client=client).read()
            await act("DELETE", "Flag/7")
            await act("PUT", "Flag/8")
            await act("PUT", "Task/1")
            known = before.manifest()
            return before, await FhirSource(url, ["Flag", "Task"], client=client, known=known).read()

    url = "http://clinic.test/p/fhir"
    with closing(PlaygroundState.create(tmp_path / "state")) as state:
        before, after = asyncio.run(reading(state))
    assert (before.trouble, after.trouble) == (None, None)
    assert WAITING not in told(before) + told(after)
    assert before.manifest().keys() ^ after.manifest().keys() == {"Flag/7", "Task/1"}
    assert sorted(one.items or 0 for one in after.reads if "/_history" in one.what) == [1, 52, 200]


# What a history is worth.


@pytest.mark.parametrize("status", [400, 403, 404, 405, 410, 422, 501])
@pytest.mark.parametrize("keeps", KEPT)
def test_a_declared_history_that_is_refused_is_noted(keeps: str, status: int) -> None:
    server = LyingFhir(flags(1), of_history(lambda request: fhir(outcome("not here"), status)), keeps=keeps)
    found, naps = rest(server)
    assert found.trouble is None
    assert f"status {status} (it says: not here)" in told(found)
    assert WAITING in told(found)
    assert naps.taken_s == [LAG_S]
    assert len([one for one in server.asked if one.url.path.endswith("_history")]) == 2


@pytest.mark.parametrize(
    "text",
    [
        '{"resourceType": "Bundle", "type": "searchset"}',
        outcome("no"),
        history(['{"resource": {"resourceType": "Flag"}}']),
        history(["3"]),
        history([deleted("Flag?status=active")]),
        # Somebody else's flag.
        history([written(resource("Flag", 1)), deleted("https://elsewhere.test/fhir/Flag/1")]),
        history([], total=-1),
        history([], link=[{"relation": "next"}]),
    ],
)
def test_what_is_no_history_proves_nothing(text: str) -> None:
    found = read(LyingFhir(flags(1), of_history(lambda request: fhir(text)), keeps="history-type"))
    assert found.trouble is None
    assert "declared" in told(found)
    assert WAITING in told(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (history([]), "lacks Flag/1"),
        (history([written(resource("Flag", 1))], total=2), "newest 1 entries"),
        (history([written(resource("Flag", 1))] * 200), "newest 200 entries"),
    ],
)
def test_an_incomplete_history_proves_nothing(text: str, why: str) -> None:
    server = LyingFhir(flags(1), of_history(lambda request: fhir(text)), keeps="history-type")
    found = read(server)
    assert found.trouble is None
    assert why in told(found)
    assert WAITING in told(found)


def test_of_a_long_history_the_newest_pages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fhir_source, "MAX_PAST_PAGES", 2)
    server = LyingFhir(flags(*range(9)), page=2, keeps="history-type")
    found = read(server)
    assert found.trouble is None
    assert "newest 4 entries" in told(found)
    assert WAITING in told(found)
    server.lie = behind(server)
    server.held["Flag"].append(resource("Flag", 9))
    assert "still has Flag/9" in (read(server).trouble or "")


def test_a_history_that_loops_or_leaves_is_an_error() -> None:
    def links(following: Callable[[int], str]) -> LyingFhir:
        def said(request: httpx.Request) -> httpx.Response:
            return fhir(history([], following=following(int(request.url.params.get("_page", 0)))))

        return LyingFhir(flags(), of_history(said), keeps="history-type")

    own = f"{BASE}/Flag/_history?_page="
    assert (read(links(lambda page: f"{own}{(page + 1) % 3}")).trouble or "").startswith("incomplete_read: ")
    assert "more than 7 pages" in (read(links(lambda page: f"{own}{page + 1}"), limits={"pages": 7}).trouble or "")
    assert "another server" in (read(links(lambda page: "https://evil.test/")).trouble or "")


def test_a_history_that_is_down_is_trouble() -> None:
    server = LyingFhir(flags(), of_history(lambda request: fhir(outcome("busy"), 503)), keeps="history-type")
    assert "status 503 (it says: busy)" in (read(server).trouble or "")


def test_a_resource_gone_by_id_is_gone() -> None:
    # Some servers note no deletions.
    server = LyingFhir(flags(1), keeps="history-type")
    server.lie = of_history(lambda request: fhir(history([written(resource("Flag", one)) for one in (2, 1)])))
    found = read(server)
    assert found.trouble is None
    assert [one.status for one in found.reads if one.what.endswith("/Flag/2")] == [410]


def test_more_than_can_be_asked_for_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fhir_source, "MAX_BY_ID", 2)
    server = LyingFhir(flags(), keeps="history-type")
    server.lie = behind(server)
    server.held = flags(1, 2, 3)
    assert "lists 3 " in (read(server).trouble or "")


def test_of_a_large_store_the_history_gives_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fhir_source, "MAX_BY_ID", 1)
    server = LyingFhir(flags(1, 2), keeps="history-type")
    known = read(server).manifest()
    assert "by id" not in told(read(server, known=known))
    server.lie = behind(server)
    server.held["Flag"][1] = resource("Flag", 2, version=2)
    assert "lists Flag/2" in (read(server, known=known).trouble or "")
    # Without versions it can tell nothing of changes.
    bare = LyingFhir({"Flag": [f'{{"resourceType": "Flag", "id": "{one}"}}' for one in "12"]}, keeps="history-type")
    assert "by id" in told(read(bare, known=["Flag/1"]))


def test_types_are_read_by_their_own_history() -> None:
    server = LyingFhir(flags(1) | {"Patient": []}, keeps="history-type")
    found = read(server, types=["Flag", "Patient", "Claim"])
    assert WAITING not in told(found)
    asked = {one.url.path for one in server.asked if "_history" in one.url.path}
    assert asked == {"/fhir/Flag/_history", "/fhir/Patient/_history"}


# A server without one.


@pytest.mark.parametrize("is_told", [True, False])
def test_without_a_history_readings_must_agree_further_apart(is_told: bool) -> None:
    server = LyingFhir(flags(1))
    if not is_told:
        server.lie = lambda request: fhir("", 403) if request.url.path.endswith("/metadata") else None
    found, naps = rest(server)
    assert found.trouble is None
    assert naps.taken_s == [LAG_S]
    assert WAITING in told(found)
    assert ("history of Flag" if is_told else "status 403") in told(found)
    assert rest(server, lag_s=10)[1].taken_s == [10]


def test_without_a_history_too_little_time_is_unsettled() -> None:
    found, _ = rest(LyingFhir(flags(1)), within_s=1.5)
    assert found.trouble is not None
    assert found.trouble.startswith("unsettled: 1.5 s")


@pytest.mark.parametrize(("lag_s", "is_overlooked"), [(5.0, False), (LAG_S, True)])
def test_without_a_history_a_long_lag_goes_unnoticed(lag_s: float, is_overlooked: bool) -> None:
    naps = Naps()
    server = LyingFhir(flags())
    lag = behind(server)
    # Lists catch up three seconds after the creation.
    server.lie = lambda request: lag(request) if naps.time() < 3 else None
    server.held["Flag"].append(resource("Flag", 1))
    found = asyncio.run(read_until_settled(source(server, lag_s=lag_s), sleep=naps, timer=naps.time))
    assert found.trouble is None
    assert (found.items == []) == is_overlooked
    assert WAITING in told(found)
