"""FHIR read from a server that nobody here wrote."""

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from tests.servers.running import FhirServer

from meruit.model.environment import Snapshot
from meruit.sources.fhir import FhirSource
from meruit.sources.retry import read_until_settled

_numbers = count()


class Store:
    """One store of the server, written to as an agent would."""

    def __init__(self, server: FhirServer, client: httpx.Client) -> None:
        self.name = f"store{next(_numbers)}"
        self.server = server
        self.client = client

    def url(self, path: str) -> str:
        return f"{self.server.base(self.name)}/{path}"

    # A resource is any JSON.
    def put(self, resource: dict[str, Any]) -> dict[str, Any]:
        reply = self.client.put(self.url(f"{resource['resourceType']}/{resource['id']}"), json=resource)
        return dict(reply.raise_for_status().json())

    def fill(self, name: str, number: int) -> None:
        entries = [
            {
                "resource": {"resourceType": name, "id": f"n{place}", "status": "final"},
                "request": {"method": "PUT", "url": f"{name}/n{place}"},
            }
            for place in range(number)
        ]
        for start in range(0, number, 500):
            bundle = {"resourceType": "Bundle", "type": "batch", "entry": entries[start : start + 500]}
            self.client.post(self.url(""), json=bundle).raise_for_status()

    def read(self, types: list[str] | None, stable: int = 2, form: str = "fhir", **others: Any) -> Snapshot:
        async def reading() -> Snapshot:
            async with httpx.AsyncClient(verify=False) as client:
                # It has no index that could lag behind.
                source = FhirSource(self.server.base(self.name, form), types, client=client, lag_s=0, **others)
                return await read_until_settled(source, stable=stable, pause_s=0.001)

        return asyncio.run(reading())


@pytest.fixture
def store(medplum: FhirServer) -> Iterator[Store]:
    with httpx.Client(verify=False) as client:
        yield Store(medplum, client)


def test_every_page_is_read(store: Store) -> None:
    store.fill("Observation", 450)
    found = store.read(["Observation"])
    assert found.trouble is None
    assert found.manifest().keys() == {f"Observation/n{place}" for place in range(450)}
    assert len([one for one in found.reads if "/Observation?" in one.what and one.status == 200]) == 3
    assert found.settled_after_ms is not None


def test_a_partial_list_is_reported_as_incomplete(store: Store) -> None:
    store.fill("Observation", 2360)
    raw = store.client.get(f"{store.server.base(store.name, 'bare')}/Observation?_count=1000").json()
    assert (len(raw["entry"]), raw["total"], "link" in raw) == (1000, 2360, False)

    async def once() -> Snapshot:
        async with httpx.AsyncClient(verify=False) as client:
            return await FhirSource(store.server.base(store.name, "bare"), ["Observation"], client=client).read()

    found = asyncio.run(once())
    assert found.trouble is not None
    assert found.trouble.startswith("incomplete_read: saw 200 of 2,360 Observation")


def test_no_unknown_search_parameter_is_sent(store: Store) -> None:
    store.fill("Patient", 2)
    assert store.client.get(store.url("Patient?nosuch=1")).json()["total"] == 0
    assert len(store.read(["Patient"]).items) == 2


@pytest.mark.parametrize("form", ["fhir", "kept"])
def test_versions_show_creations_updates_and_deletions(store: Store, form: str) -> None:
    for id_ in ("kept", "changed", "removed"):
        store.put({"resourceType": "Patient", "id": id_})
    before = store.read(["Patient"], form=form)
    changed = store.put({"resourceType": "Patient", "id": "changed", "active": True})
    store.put({"resourceType": "Patient", "id": "new"})
    store.client.delete(store.url("Patient/removed")).raise_for_status()
    after = store.read(["Patient"], form=form, known=before.manifest())
    assert after.trouble is None
    assert any("_history?" in one.what for one in after.reads) == (form == "kept")
    old, new = before.manifest(), after.manifest()
    assert old.keys() - new.keys() == {"Patient/removed"}
    assert new.keys() - old.keys() == {"Patient/new"}
    assert {key for key in old.keys() & new.keys() if old[key] != new[key]} == {"Patient/changed"}
    assert new["Patient/changed"].startswith(f"{changed['meta']['versionId']}-")


def test_a_long_history_names_what_the_lists_lack(store: Store) -> None:
    store.fill("Observation", 250)
    store.fill("Observation", 201)
    known = store.read(["Observation"], form="kept").manifest()
    store.put({"resourceType": "Observation", "id": "late"})

    async def reading() -> Snapshot:
        async with httpx.AsyncHTTPTransport(verify=False) as passing:

            async def hidden(request: httpx.Request) -> httpx.Response:
                reply = await passing.handle_async_request(request)
                content = await reply.aread()
                if not request.url.path.endswith("/Observation"):
                    return httpx.Response(reply.status_code, content=content)
                bundle = json.loads(content)
                bundle["entry"] = [one for one in bundle.get("entry", []) if one["resource"]["id"] != "late"]
                return httpx.Response(200, json=bundle | {"total": 250})

            async with httpx.AsyncClient(transport=httpx.MockTransport(hidden)) as client:
                return await FhirSource(base, ["Observation"], client=client, known=known).read()

    base = store.server.base(store.name, "kept")
    found = asyncio.run(reading())
    assert (found.trouble or "").startswith(f"unsettled: {base} still has Observation/late")
    assert [one.items for one in found.reads if "_history?" in one.what] == [200, 200, 52]


def test_bodies_are_what_the_server_sends(store: Store) -> None:
    written = store.put(
        {"resourceType": "Patient", "id": "é".encode().hex(), "name": [{"family": 'Größe \u2028 \\ "'}]}
    )
    (one,) = store.read(["Patient"]).items
    assert json.loads(one.content()) == written


def test_all_types_that_the_server_declares_are_read(store: Store) -> None:
    for name in ("Patient", "Observation", "Claim"):
        store.put({"resourceType": name, "id": "1"})
    found = store.read(None, stable=1)
    assert found.trouble is None
    assert found.manifest().keys() == {"Patient/1", "Observation/1", "Claim/1"}
    assert len(found.reads) > 140


def test_a_type_of_another_release_is_empty_and_noted(store: Store) -> None:
    found = store.read(["Patient", "Permission"])
    assert found.trouble is None
    assert any("declares no Permission" in one.what for one in found.reads)
