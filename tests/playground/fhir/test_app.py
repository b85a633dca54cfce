"""The FHIR R4 server of a playground, as a client sees it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meruit.errors import BadPatch
from meruit.model.environment import SourceKind
from meruit.playground.fhir import app as fhir
from meruit.playground.fhir.json import ExactDecimal, parse, write
from meruit.playground.fhir.json_patch import apply_patch
from meruit.playground.state import PlaygroundState

BASE = "http://clinic.example/p/fhir"
JSON = {"Content-Type": "application/fhir+json"}
STRICT = {"Prefer": "handling=strict"}
NOON = datetime(2026, 3, 6, 12, 0, 0, tzinfo=UTC)

# Any: bodies in JSON.
Json = dict[str, Any]


class Client:
    """Asks one server, and waits for the answer."""

    def __init__(self, state: PlaygroundState) -> None:
        ids = count(1)
        self.state = state
        self.app = fhir.app({"p": state}.get, base=lambda _: BASE, new_id=lambda: f"new-{next(ids)}")

    def __call__(self, method: str, url: str, body: Any = None, **headers: str) -> httpx.Response:
        answer: httpx.Response = self.all(lambda ask: ask(method, url, body, **headers))
        return answer

    def all(self, work: Callable[..., Awaitable[Any]]) -> Any:
        async def run() -> Any:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url=f"{BASE}/") as client:

                async def ask(method: str, url: str, body: Any = None, **headers: str) -> httpx.Response:
                    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                    dashed = {name.replace("_", "-"): value for name, value in headers.items()}
                    return await client.request(method, url, content=content, headers={**JSON, **dashed})

                return await work(ask)

        return asyncio.run(run())

    def pages(self, url: str) -> list[Json]:
        found = [self("GET", url).json()]
        while following := [link["url"] for link in found[-1]["link"] if link["relation"] == "next"]:
            assert len(found) < 200
            found.append(self("GET", following[0]).json())
        return found


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Client]:
    ticks = count()
    with closing(
        PlaygroundState.create(tmp_path / "s.db", clock=lambda: NOON + timedelta(seconds=next(ticks)))
    ) as state:
        yield Client(state)


def patient(**fields: Any) -> Json:
    return {"resourceType": "Patient", **fields}


def ids(bundle: Json) -> list[str]:
    return [entry["resource"]["id"] for entry in bundle.get("entry", []) if entry["search"]["mode"] == "match"]


def said(response: httpx.Response) -> str:
    body = response.json()
    assert body["resourceType"] == "OperationOutcome"
    assert response.headers["content-type"].startswith("application/fhir+json")
    return str(body["issue"][0]["diagnostics"])


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,12})\.[0-9]{1,12}([eE][-+]?[0-9]{1,2})?", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | NUMBERS.map(ExactDecimal)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\é\n', max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_json_is_written_as_it_was_read(value: Any) -> None:
    text = write(value)
    assert write(parse(text)) == text
    assert json.loads(text, parse_float=Decimal) == value


def test_a_resource_lives_from_create_to_delete(ask: Client) -> None:
    created = ask("POST", "Patient", patient(id="ignored", active=True))
    assert created.status_code == 201
    assert created.headers["location"] == f"{BASE}/Patient/new-1/_history/1"
    assert created.headers["etag"] == 'W/"1"'
    assert created.headers["last-modified"] == "Fri, 06 Mar 2026 12:00:02 GMT"
    assert created.json() == patient(
        id="new-1", meta={"versionId": "1", "lastUpdated": "2026-03-06T12:00:02.000000Z"}, active=True
    )
    read = ask("GET", "Patient/new-1")
    assert (read.status_code, read.content, read.headers["etag"]) == (200, created.content, 'W/"1"')
    assert ask("GET", "Patient/new-1", If_None_Match='W/"1"').status_code == 304
    assert ask("GET", "Patient/new-1", If_None_Match='W/"12"').status_code == 200
    assert ask("HEAD", "Patient/new-1").content == b""

    changed = patient(id="new-1", active=False, meta={"tag": [{"code": "x"}], "versionId": "77"})
    updated = ask("PUT", "Patient/new-1", changed, If_Match='W/"1"')
    assert (updated.status_code, updated.headers["etag"]) == (200, 'W/"2"')
    assert updated.json()["meta"]["tag"] == [{"code": "x"}]
    stale = ask("PUT", "Patient/new-1", changed, If_Match='W/"1"')
    assert (stale.status_code, "version 2 stands" in said(stale)) == (412, True)
    operations = [
        {"op": "test", "path": "/active", "value": False},
        {"op": "replace", "path": "/active", "value": True},
    ]
    assert (
        ask("PATCH", "Patient/new-1", operations, Content_Type="application/json-patch+json").json()["active"] is True
    )
    assert ask("PATCH", "Patient/new-1", operations).status_code == 422

    assert ask("DELETE", "Patient/new-1", If_Match='W/"1"').status_code == 412
    deleted = ask("DELETE", "Patient/new-1")
    assert (deleted.status_code, deleted.headers["etag"], deleted.content) == (204, 'W/"4"', b"")
    assert ask("DELETE", "Patient/new-1").status_code == 204
    assert ask("GET", "Patient/new-1").status_code == 410
    assert ask("GET", "Patient/new-1/_history/2").content == updated.content
    assert ask("GET", "Patient/new-1/_history/4").status_code == 410
    assert ask("GET", "Patient/new-1/_history/9").status_code == 404
    again = ask("PUT", "Patient/new-1", patient(id="new-1"))
    assert (again.status_code, again.headers["etag"]) == (201, 'W/"5"')
    assert [(event.type, event.key, event.facts["version"]) for event in ask.state.events()] == [
        ("fhir_create", "Patient/new-1", "1"),
        ("fhir_update", "Patient/new-1", "2"),
        ("fhir_update", "Patient/new-1", "3"),
        ("fhir_delete", "Patient/new-1", "4"),
        ("fhir_create", "Patient/new-1", "5"),
    ]
    assert ask.state.events()[1].facts["request"] == "PUT Patient/new-1"
    item = ask.state.get(SourceKind.FHIR, "Patient/new-1")
    assert item is not None
    assert (item.version, item.content()) == ("5", again.content)


def test_full_references_to_this_server_are_local(ask: Client) -> None:
    ask("PUT", "Patient/1", patient(id="1"))
    for identity, base in (("own", f"{BASE}/"), ("foreign", "http://elsewhere.example/fhir/")):
        order = {"resourceType": "ServiceRequest", "id": identity, "subject": {"reference": f"{base}Patient/1"}}
        ask("PUT", f"ServiceRequest/{identity}", order)
    assert ask("GET", "ServiceRequest/own").json()["subject"] == {"reference": "Patient/1"}
    for wanted in ("Patient/1", f"{BASE}/Patient/1"):
        found = ask("GET", f"ServiceRequest?subject={wanted}").json()
        assert [entry["resource"]["id"] for entry in found["entry"]] == ["own"]


def test_decimals_stay_as_they_were_written(ask: Client) -> None:
    numbers = b"[1.0,1.00,0.10,1e2,1.5E-7,-0.0,100000000000000000000.10,3]"
    ask("POST", "Observation", b'{"resourceType": "Observation", "value": ' + numbers + b"}")
    assert numbers in ask("GET", "Observation/new-1").content
    assert numbers in ask("GET", "Observation").content
    assert numbers in ask("GET", "Observation/_history").content
    ask("PATCH", "Observation/new-1", [{"op": "add", "path": "/status", "value": "final"}])
    assert numbers in ask("GET", "Observation/new-1").content
    assert numbers in ask("GET", "Observation?_elements=value").content


def test_history_has_every_version_and_every_deletion_in_pages(ask: Client) -> None:
    for number in range(4):
        ask("PUT", f"Patient/{number % 2}", patient(id=str(number % 2)))
    ask("PUT", "Task/1", {"resourceType": "Task", "id": "1"})
    ask("DELETE", "Patient/1")

    def told(pages: list[Json]) -> list[tuple[str, str]]:
        assert {page["total"] for page in pages} == {sum(len(page["entry"]) for page in pages)}
        return [
            (entry["fullUrl"].removeprefix(f"{BASE}/"), entry["response"]["etag"])
            for page in pages
            for entry in page["entry"]
        ]

    every = [("Patient/1", 'W/"3"'), ("Task/1", 'W/"1"'), ("Patient/1", 'W/"2"'), ("Patient/0", 'W/"2"')]
    every += [("Patient/1", 'W/"1"'), ("Patient/0", 'W/"1"')]
    assert told(ask.pages("_history?_count=4")) == every
    assert told(ask.pages("Patient/_history?_count=2")) == [one for one in every if one[0] != "Task/1"]
    assert told(ask.pages("Patient/1/_history?_count=1")) == [one for one in every if one[0] == "Patient/1"]
    last = ask("GET", "Patient/1/_history").json()["entry"][0]
    assert last["request"] == {"method": "DELETE", "url": "Patient/1"}
    assert "resource" not in last
    moment = ask("GET", "Task/1").json()["meta"]["lastUpdated"]
    assert told(ask.pages(f"_history?_since={moment}")) == every[:2]
    assert ask("GET", "_history?_since=2026-03-06T13:00:00+01:00").json()["total"] == 6
    assert ask("GET", "_history?_since=soon").status_code == 400
    assert ask("GET", "_history?_page=x").status_code == 400
    assert ask("GET", "Patient/9/_history").status_code == 404


PEOPLE = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "gender": st.sampled_from(["male", "female"]),
            "active": st.booleans(),
            "birthDate": st.sampled_from(["1990-01-01", "1990", "2001-05-06"]),
            "name": st.just([{"family": "Ångström"}]),
        },
    ),
    max_size=12,
)
FILTERS: dict[str, Callable[[Json], bool]] = {
    "gender=male": lambda one: one.get("gender") == "male",
    "active=true": lambda one: one.get("active") is True,
    "birthdate=1990": lambda one: one.get("birthDate", "").startswith("1990"),
    "family=angs": lambda one: "name" in one,
    "gender:missing=true": lambda one: "gender" not in one,
}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    PEOPLE,
    st.sets(st.sampled_from(sorted(FILTERS)), max_size=2),
    st.integers(1, 5),
    st.sampled_from(["", "-birthdate", "gender,-_id"]),
)
def test_all_pages_of_a_search_equal_a_filter(
    tmp_path_factory: pytest.TempPathFactory, people: list[Json], names: set[str], size: int, sort: str
) -> None:
    with closing(PlaygroundState.create(tmp_path_factory.mktemp("search") / "s.db")) as state:
        ask = Client(state)
        for number, person in enumerate(people):
            ask("PUT", f"Patient/{number}", patient(id=str(number), **person))
        wanted = [str(number) for number, person in enumerate(people) if all(FILTERS[name](person) for name in names)]
        query = "&".join([*sorted(names), f"_count={size}", *([f"_sort={sort}"] if sort else [])])
        pages = ask.pages(f"Patient?{query}")
        found = [one for page in pages for one in ids(page)]
        assert {page["total"] for page in pages} == {len(wanted)}
        assert sorted(found) == sorted(wanted)
        assert all(len(ids(page)) == size for page in pages[:-1])
        if sort == "-birthdate":
            dates = [people[int(one)]["birthDate"][:4] for one in found if "birthDate" in people[int(one)]]
            assert dates == sorted(dates, reverse=True)
            assert all("birthDate" not in people[int(one)] for one in found[len(dates) :])


def test_paging_is_not_disturbed_by_what_is_written_meanwhile(ask: Client) -> None:
    for number in range(5):
        ask("PUT", f"Patient/b{number}", patient(id=f"b{number}"))
    first = ask("GET", "Patient?_count=2").json()
    ask("PUT", "Patient/a", patient(id="a"))
    ask("DELETE", "Patient/b1")
    rest = ask.pages(next(link["url"] for link in first["link"] if link["relation"] == "next"))
    assert [one for page in rest for one in ids(page)] == ["b2", "b3", "b4"]


def test_search_parameters_shape_the_reply(ask: Client) -> None:
    for number in range(3):
        ask("PUT", f"Patient/{number}", patient(id=str(number), gender="male", active=True))
    counted = ask("GET", "Patient?_summary=count").json()
    assert (counted["total"], "entry" in counted) == (3, False)
    assert ask("GET", "Patient?_count=0").json()["total"] == 3
    assert "total" not in ask("GET", "Patient?_total=none").json()
    subset = ask("GET", "Patient?_elements=gender&_id=1").json()["entry"][0]["resource"]
    assert subset.keys() == {"resourceType", "id", "meta", "gender"}
    assert subset["meta"]["tag"][0]["code"] == "SUBSETTED"
    assert ids(ask("GET", "Patient?_sort=-_lastUpdated").json()) == ["2", "1", "0"]
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    posted = ask("POST", "Patient/_search?_count=2", b"gender=male&_sort=-_id", **form).json()
    assert ids(posted) == ["2", "1"]
    assert "gender=male" in posted["link"][1]["url"]
    assert ask("POST", "Patient/_search", b"gender=male").status_code == 415
    assert ask("POST", "Patient/_search", b"gender=\xff", **form).status_code == 400
    assert ask("GET", "Patient?_format=json&_pretty=true").status_code == 200
    assert ask("GET", "Patient?_format=xml").status_code == 406
    assert ask("GET", "Patient", Accept="application/fhir+xml").status_code == 406
    assert ask("GET", "Patient", Accept="application/fhir+xml, */*;q=0.1").status_code == 200


def test_searches_are_sorted_by_what_a_value_says(ask: Client) -> None:
    visits: dict[str, Json] = {
        "a": {"period": {"start": "2026-03-06T10:00:00-06:00"}, "type": [{"coding": [{"code": "C"}]}]},
        "b": {"period": {"start": "2026-03-06T12:00:00Z"}, "type": [{"text": "a"}], "status": "planned"},
        "c": {"period": {"start": "0001-01-01T00:00:00+14:00"}, "type": [], "status": "arrived"},
        "d": {"period": 7, "type": [{"coding": []}], "subject": {"reference": "Patient/1"}},
    }
    for identity, visit in visits.items():
        ask("PUT", f"Encounter/{identity}", {"resourceType": "Encounter", "id": identity, **visit})
    ask("PUT", "Patient/1", patient(id="1", active=True))
    ask("PUT", "Patient/2", patient(id="2", active=False, name=[{"given": ["Z"]}]))
    orders = {
        "Encounter?_sort=date": "cbad",
        "Encounter?_sort=-date": "abcd",
        "Encounter?_sort=type": "bacd",
        "Encounter?_sort=-status,date": "bcad",
        "Encounter?_sort=subject": "dabc",
        "Patient?_sort=active": "21",
        "Patient?_sort=name": "21",
    }
    assert {url: "".join(ids(ask("GET", url).json())) for url in orders} == orders
    assert ask("GET", "Encounter?_sort=length", Prefer="handling=strict").status_code == 400


def test_an_unknown_parameter_is_never_passed_over_in_silence(ask: Client) -> None:
    ask("PUT", "Patient/1", patient(id="1"))
    for query in ("gendr=male", "_sort=shoe", "_summary=text", "_total=all", "_include=Patient:link"):
        lenient = ask("GET", f"Patient?{query}").json()
        warning = lenient["entry"][-1]
        assert warning["search"] == {"mode": "outcome"}
        assert "not applied" in warning["resource"]["issue"][0]["diagnostics"]
        assert lenient["link"][0]["url"] == f"{BASE}/Patient"
        assert ask("GET", f"Patient?{query}", **STRICT).status_code == 400
    assert "'gender'" in said(ask("GET", "Patient?gendr=male", **STRICT))
    for query in ("birthdate=someday", "gender:odd=male", "_count=-1", "_count=many", "_page=x", "_page=W10", "a=%ff"):
        assert ask("GET", f"Patient?{query}").status_code == 400, query
    assert ask("GET", "Patient?" + "gender=male&" * 201).status_code == 400


def test_conditions_name_one_resource_or_none(ask: Client) -> None:
    known = patient(identifier=[{"system": "urn:mrn", "value": "7"}])
    first = ask("POST", "Patient", known, If_None_Exist="identifier=urn:mrn|7")
    second = ask("POST", "Patient", known, If_None_Exist="identifier=urn:mrn|7")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.headers["location"] == second.headers["location"]
    assert ask("PUT", "Patient?identifier=7", {**known, "active": True}).headers["etag"] == 'W/"2"'
    assert ask("PUT", "Patient?identifier=7", {**known, "id": "other"}).status_code == 400
    assert (
        ask("PUT", "Patient?identifier=8", patient(id="eight"))
        .headers["location"]
        .endswith("/Patient/eight/_history/1")
    )
    ask("POST", "Patient", known)
    assert ask("POST", "Patient", known, If_None_Exist="identifier=7").status_code == 412
    assert ask("DELETE", "Patient?identifier=7").status_code == 412
    assert ask("DELETE", "Patient").status_code == 412
    assert ask("DELETE", "Patient?idntifier=7").status_code == 412
    assert ask("POST", "Patient", known, If_None_Exist="").status_code == 412
    assert ask("DELETE", "Patient?_id=eight").status_code == 204
    assert ask("DELETE", "Patient?_id=eight").status_code == 204
    assert ids(ask("GET", "Patient").json()) == ["new-1", "new-2"]


def entry(method: str, url: str, resource: Json | None = None, *, full_url: str | None = None, **request: str) -> Json:
    parts: Json = {"request": {"method": method, "url": url, **request}}
    return parts | ({"resource": resource} if resource else {}) | ({"fullUrl": full_url} if full_url else {})


def bundle(kind: str, *entries: Any) -> Json:
    return {"resourceType": "Bundle", "type": kind, "entry": list(entries)}


def test_a_transaction_links_what_it_creates(ask: Client) -> None:
    ask("PUT", "Practitioner/9", {"resourceType": "Practitioner", "id": "9", "identifier": [{"value": "npi"}]})
    ask("PUT", "Patient/old", patient(id="old"))
    ask("PUT", "Patient/known", patient(id="known", identifier=[{"value": "mrn"}]))
    visit = {
        "resourceType": "Encounter",
        "subject": {"reference": "urn:uuid:aa"},
        "participant": [{"individual": {"reference": "Practitioner?identifier=npi"}}],
        "extension": [{"url": "x", "valueUri": "urn:uuid:aa"}],
        "partOf": {"reference": "urn:uuid:cc"},
    }
    sent = bundle(
        "transaction",
        entry("GET", "Encounter?subject=Patient/new-2"),
        entry("POST", "Encounter", visit),
        entry("POST", "Patient", patient(), full_url="urn:uuid:aa"),
        entry("POST", "Patient", patient(), full_url="urn:uuid:bb", ifNoneExist="identifier=mrn"),
        entry("PUT", "Encounter/c", {"resourceType": "Encounter", "id": "c"}, full_url="urn:uuid:cc"),
        entry("PUT", "Patient?identifier=none", patient(link=[{"other": {"reference": "urn:uuid:bb"}}])),
        entry("DELETE", f"{BASE}/Patient/old"),
        entry("DELETE", "Patient?identifier=nobody"),
    )
    answered = ask("POST", "", sent).json()
    assert answered["type"] == "transaction-response"
    statuses = [one["response"]["status"][:3] for one in answered["entry"]]
    assert statuses == ["200", "201", "201", "200", "201", "201", "204", "204"]
    made = answered["entry"][0]["resource"]["entry"][0]["resource"]
    assert made["subject"] == {"reference": "Patient/new-2"}
    assert made["extension"][0]["valueUri"] == "Patient/new-2"
    assert made["participant"][0]["individual"] == {"reference": "Practitioner/9"}
    assert made["partOf"] == {"reference": "Encounter/c"}
    assert answered["entry"][1]["response"]["location"] == f"{BASE}/Encounter/new-1/_history/1"
    assert ask("GET", "Patient/new-3").json()["link"][0]["other"] == {"reference": "Patient/known"}
    assert len({event.at for event in ask.state.events()[3:]}) == 1
    represented = ask(
        "POST", "", bundle("transaction", entry("POST", "Patient", patient())), Prefer="return=representation"
    )
    assert represented.json()["entry"][0]["resource"]["id"] == "new-4"


BAD_ENTRIES = {
    "refused": (entry("PUT", "Patient/2", patient(id="3")), 400),
    "stale": (entry("PUT", "Patient/1", patient(id="1"), ifMatch='W/"7"'), 412),
    "missing": (entry("GET", "Patient/none"), 404),
    "no type": (entry("POST", "Patiens", {"resourceType": "Patiens"}), 404),
    "no request": ({"resource": patient()}, 400),
    "no method": (entry("FROB", "Patient"), 400),
    "elsewhere": (entry("GET", "http://other.example/Patient/1"), 400),
    "no address": (entry("GET", "http://[x/Patient/1"), 400),
    "not text": ({"request": {"method": "GET", "url": 7}}, 400),
    "no object": (7, 400),
    "no resource": (entry("POST", "Patient"), 400),
    "no resource to put": (entry("PUT", "Patient?identifier=1"), 400),
    "a bundle": (entry("POST", "", bundle("batch")), 404),
    "twice": (entry("DELETE", "Patient/first"), 400),
    "leads nowhere": (
        entry("POST", "Task", {"resourceType": "Task", "for": {"reference": "Patient?identifier=0"}}),
        412,
    ),
    "other condition": (entry("PUT", "Patient?_id=1", patient(id="2")), 400),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_bad_entry_fails_a_transaction_but_not_a_batch(ask: Client, name: str) -> None:
    bad, status = BAD_ENTRIES[name]
    ask("PUT", "Patient/1", patient(id="1"))
    before, events = ask.state.snapshots(), ask.state.events()
    first = entry("PUT", "Patient/first", patient(id="first"))
    failed = ask("POST", "", bundle("transaction", first, bad))
    assert failed.status_code == status
    assert failed.json()["issue"][0]["expression"] == ["Bundle.entry[1]"]
    assert (ask.state.snapshots(), ask.state.events()) == (before, events)
    batched = ask("POST", "", bundle("batch", bad, first)).json()
    if name not in ("twice", "leads nowhere"):
        assert batched["entry"][0]["response"]["status"].startswith(str(status))
        assert batched["entry"][0]["response"]["outcome"]["issue"]
    assert batched["entry"][1]["response"]["status"] == "201 Created"


BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "cut short": (b'{"resourceType": "Patient"', "at byte 26"),
    "after a letter of two bytes": ('{"é": }'.encode(), "at byte 7"),
    "NaN": (b'{"resourceType": "Patient", "x": NaN}', "NaN"),
    "twice": (b'{"resourceType": "Patient", "active": true, "active": false}', "'active' twice"),
    "latin-1": (b'{"resourceType": "Patient", "x": "\xe9"}', "not UTF-8"),
    "utf-16": ('{"resourceType": "Patient"}'.encode("utf-16"), "not UTF-8"),
    "half a character": (b'{"resourceType": "Patient", "x": "\\ud800"}', "surrogate"),
    "rather deep": (b'{"resourceType": "Patient", "x": ' + b"[" * 64 + b"]" * 64 + b"}", "deeper than 64"),
    "deep": (b'{"resourceType": "Patient", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "deep"),
    "long number": (b'{"resourceType": "Patient", "x": ' + b"9" * 5000 + b"}", "digits"),
    "huge number": (b'{"resourceType": "Patient", "x": 1e999999999999}', "digits"),
    "a list": (b"[]", "JSON object"),
    "another type": (b'{"resourceType": "Practitioner"}', "'Practitioner'"),
    "no type": (b"{}", "resourceType None"),
    "meta": (b'{"resourceType": "Patient", "meta": 7}', "meta"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_are_refused_and_say_where(ask: Client, name: str) -> None:
    body, words = BAD_BODIES[name]
    refused = ask("POST", "Patient", body)
    assert refused.status_code == 400
    assert words in said(refused)
    assert ask.state.events() == []


def test_a_byte_order_mark_is_no_part_of_a_resource(ask: Client) -> None:
    assert ask("POST", "Patient", b'\xef\xbb\xbf{"resourceType": "Patient"}').status_code == 201


def test_requests_that_cannot_be_done_get_the_right_status(ask: Client) -> None:
    ask("PUT", "Patient/1", patient(id="1"))
    good = json.dumps(patient(id="1")).encode()
    asked: list[tuple[int, str, str, Any, dict[str, str]]] = [
        (404, "GET", "Patient/2", None, {}),
        (404, "GET", "Patiens/2", None, {}),
        (404, "GET", "Patient/1/$everything", None, {}),
        (404, "GET", "Patient/$match", None, {}),
        (404, "GET", "Patient/1/Observation/2/3", None, {}),
        (405, "GET", "", None, {}),
        (405, "PATCH", "Patient", [], {}),
        (405, "POST", "Patient/1", good, {}),
        (405, "DELETE", "metadata", None, {}),
        (400, "PUT", "Patient/2", good, {}),
        (400, "PUT", "Patient/a_b", patient(id="a_b"), {}),
        (400, "PUT", f"Patient/{'a' * 65}", patient(id="a" * 65), {}),
        (412, "PUT", "Patient/2", patient(id="2"), {"If_Match": "*"}),
        (415, "PUT", "Patient/1", good, {"Content_Type": "text/plain"}),
        (415, "PUT", "Patient/1", good, {"Content_Type": "application/fhir+xml"}),
        (415, "PUT", "Patient/1", good, {"Content_Type": "application/fhir+json; charset=latin-1"}),
        (415, "PUT", "Patient/1", good, {"Content_Encoding": "gzip"}),
        (413, "PUT", "Patient/1", b" " * (fhir.MAX_BODY_BYTES + 1), {}),
        (400, "POST", "", patient(), {}),
        (400, "POST", "", bundle("collection"), {}),
        (400, "POST", "", {**bundle("batch"), "entry": {}}, {}),
        (422, "PATCH", "Patient/1", {}, {}),
        (400, "PATCH", "Patient/1", [{"op": "replace", "path": "/id", "value": "9"}], {}),
    ]
    for status, method, url, body, headers in asked:
        refused = ask(method, url, body, **headers)
        assert (refused.status_code, method, url) == (status, method, url), refused.text
        assert said(refused)
        assert ("allow" in refused.headers) == (status == 405)
    assert len(ask.state.events()) == 1
    assert ask("PUT", "Patient/1", good, Prefer="return=minimal").content == b""
    assert ask("PUT", "Patient/1", good, Content_Type='application/json; charset="UTF-8"').status_code == 200


def test_patches_cannot_nest_a_resource_too_deeply(ask: Client) -> None:
    ask("PUT", "Patient/1", patient(id="1"))
    deep: Any = {}
    for _ in range(30):
        deep = {"x": deep}
    add = [{"op": "add", "path": "/x", "value": deep}]
    assert ask("PATCH", "Patient/1", add).status_code == 200
    assert ask("PATCH", "Patient/1", [{"op": "copy", "from": "/x", "path": "/x" * 31}]).status_code == 200
    refused = ask("PATCH", "Patient/1", [{"op": "copy", "from": "/x", "path": "/x" * 61}])
    assert (refused.status_code, "deeper than 64" in said(refused)) == (400, True)


def test_a_bundle_has_a_bound(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.playground.fhir.bundles.MAX_ENTRIES", 1)
    assert ask("POST", "", bundle("batch", entry("GET", "Patient"))).status_code == 200
    assert ask("POST", "", bundle("batch", *[entry("GET", "Patient")] * 2)).status_code == 413


def test_patches_cannot_double_a_resource_without_end(ask: Client) -> None:
    ask("PUT", "Patient/1", patient(id="1"))
    doubling = [
        {"op": "add", "path": "/x", "value": ["A" * 1000]},
        *[{"op": "copy", "from": "/x", "path": "/x/-"}] * 16,
    ]
    refused = ask("PATCH", "Patient/1", doubling)
    assert (refused.status_code, "may copy 16,777,216 bytes" in said(refused)) == (422, True)
    assert "x" not in ask("GET", "Patient/1").json()


def test_a_failed_patch_test_quotes_little() -> None:
    with pytest.raises(BadPatch) as refused:
        apply_patch({"x": ["A" * 10_000] * 100}, [{"op": "test", "path": "/x", "value": 1}])
    assert len(str(refused.value)) < 500


def test_a_resource_has_a_bound_however_it_came_to_be(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.playground.fhir.resources.MAX_RESOURCE_BYTES", 1000)
    assert ask("PUT", "Patient/1", patient(id="1")).status_code == 201
    refused = ask("PATCH", "Patient/1", [{"op": "add", "path": "/x", "value": "A" * 1000}])
    assert (refused.status_code, "1,000 bytes" in said(refused)) == (413, True)


@pytest.mark.parametrize(
    "costly",
    [
        ("GET", "Patient"),
        ("GET", "Patient/_history"),
        ("GET", "Patient/1/_history/1"),
        ("POST", "Patient/_search"),
        ("PUT", "Patient?identifier=1"),
        ("DELETE", "Patient?identifier=1"),
    ],
)
def test_a_bundle_may_search_so_often(ask: Client, monkeypatch: pytest.MonkeyPatch, costly: tuple[str, str]) -> None:
    monkeypatch.setattr("meruit.playground.fhir.bundles.MAX_SEARCHES", 1)
    search, costing = entry("GET", "Patient?active=true"), entry(*costly)
    assert ask("POST", "", bundle("transaction", search, entry("GET", "metadata"))).status_code == 200
    refused = ask("POST", "", bundle("transaction", search, costing))
    assert (refused.status_code, "1 searches" in said(refused)) == (413, True)
    done = ask("POST", "", bundle("batch", search, costing)).json()["entry"]
    assert [one["response"]["status"][:3] for one in done] == ["200", "413"]


def test_equal_conditions_in_a_bundle_are_one_search(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.playground.fhir.bundles.MAX_SEARCHES", 1)
    ask("PUT", "Patient/1", patient(id="1", identifier=[{"value": "a"}], active=True))

    def of(condition: str) -> Json:
        flag = {"resourceType": "Flag", "subject": {"reference": f"Patient?{condition}"}}
        return entry("POST", "Flag", flag)

    assert ask("POST", "", bundle("transaction", *[of("identifier=a")] * 3)).status_code == 200
    assert ask("POST", "", bundle("transaction", of("identifier=a"), of("active=true"))).status_code == 413
    wary = entry("POST", "Patient", patient(), ifNoneExist="identifier=a")
    assert ask("POST", "", bundle("transaction", wary, wary)).status_code == 413


def test_the_answer_to_a_bundle_has_a_bound(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.playground.fhir.bundles.MAX_ANSWER_BYTES", 3000)
    ask("PUT", "Patient/1", patient(id="1", x="A" * 1000))
    reads = [entry("GET", "Patient/1")] * 5
    done = ask("POST", "", bundle("batch", *reads)).json()["entry"]
    assert [one["response"]["status"][:3] for one in done] == ["200", "200", "413", "413", "413"]
    assert ask("POST", "", bundle("transaction", *reads)).status_code == 413


def test_a_body_without_a_length_is_bounded_too(ask: Client) -> None:
    async def send(post: Any) -> Any:
        async def endless() -> Any:
            for _ in range(20):
                yield b" " * 1024 * 1024

        transport = httpx.ASGITransport(app=ask.app)
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.post(f"{BASE}/Patient", content=endless(), headers=JSON)

    assert ask.all(send).status_code == 413


def test_capabilities_are_declared(ask: Client) -> None:
    found = ask("GET", "metadata").json()
    assert (found["resourceType"], found["fhirVersion"]) == ("CapabilityStatement", "4.0.1")
    by_type = {one["type"]: one for one in found["rest"][0]["resource"]}
    assert len(by_type) == 144
    assert {"name": "birthdate", "type": "date"} in by_type["Patient"]["searchParam"]


def test_an_unknown_playground_is_not_found(ask: Client) -> None:
    assert ask("GET", "http://clinic.example/q/fhir/Patient").status_code == 404


def test_of_fifty_who_change_one_version_exactly_one_wins(ask: Client) -> None:
    ask("PUT", "Patient/1", patient(id="1"))

    async def race(put: Any) -> Any:
        return await asyncio.gather(
            *(
                put("PUT", "Patient/1", patient(id="1", name=[{"family": str(one)}]), If_Match='W/"1"')
                for one in range(50)
            )
        )

    statuses = sorted(response.status_code for response in ask.all(race))
    assert statuses == [200] + [412] * 49
    assert ask("GET", "Patient/1/_history").json()["total"] == 2


PATCHES: list[tuple[Any, Any, Any]] = [
    ({"a": 1}, [{"op": "add", "path": "/b", "value": [1]}], {"a": 1, "b": [1]}),
    ({"a": [1, 2]}, [{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2]}),
    ({"a": [1, 2]}, [{"op": "add", "path": "/a/-", "value": 9}], {"a": [1, 2, 9]}),
    ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
    ({"a": [1, 2]}, [{"op": "replace", "path": "/a/1", "value": 3}], {"a": [1, 3]}),
    ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
    ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "remove", "path": "/a/0"}], {"a": [], "b": [1]}),
    ({"a/b": 1, "m~n": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/m~0n"}], {}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": {}}], {}),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": 2}], None),
    ({"a": 1}, [{"op": "remove", "path": "/b"}], None),
    ({"a": 1}, [{"op": "replace", "path": "/b", "value": 1}], None),
    ({"a": 1}, [{"op": "add", "path": "/a/b", "value": 1}], None),
    ({"a": 1}, [{"op": "remove", "path": "/a/b"}], None),
    ({"a": [1]}, [{"op": "add", "path": "/a/7", "value": 1}], None),
    ({"a": [1]}, [{"op": "remove", "path": "/a/01"}], None),
    ({"a": 1}, [{"op": "add", "path": "a", "value": 1}], None),
    ({"a": 1}, [{"op": "add", "path": "/a"}], None),
    ({"a": 1}, [{"op": "frob", "path": "/a"}], None),
    ({"a": 1}, ["add"], None),
    ({"a": 1}, {}, None),
]


@pytest.mark.parametrize(("document", "operations", "wanted"), PATCHES)
def test_patches_do_what_rfc_6902_says(document: Any, operations: Any, wanted: Any) -> None:
    before = json.dumps(document)
    if wanted is None:
        with pytest.raises(BadPatch):
            apply_patch(document, operations)
    else:
        assert apply_patch(document, operations) == wanted
    assert json.dumps(document) == before


def test_a_server_that_cannot_reach_its_file_says_so(ask: Client) -> None:
    ask.state.close()
    ask.state.path.unlink()
    unavailable = ask("GET", "Patient/1")
    assert (unavailable.status_code, str(ask.state.path) in said(unavailable)) == (503, False)


def test_an_asker_who_goes_away_is_not_answered(ask: Client) -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/p/fhir/Patient", "query_string": b"", "headers": []}
    asyncio.run(ask.app(scope, gone, send))  # type: ignore[arg-type] # an application is a coroutine function
    assert ask.state.events() == []
