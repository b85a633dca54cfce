"""A FHIR server of our own that lies in the ways that real ones do, one lie at a time."""

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs

import httpx

BASE = "https://ehr.test/fhir"
DATE = "Tue, 15 Nov 2022 08:12:31 GMT"
FHIR_JSON = "application/fhir+json; charset=utf-8"

Answer = Callable[[httpx.Request], httpx.Response | None]
"""What a lie says in place of the truth; None for the truth."""


def resource(name: str, number: int, version: int = 1) -> str:
    """A resource as text, with a number whose last zero is easily lost."""
    return (
        f'{{"resourceType": "{name}", "id": "{number}", "meta": {{"versionId": "{version}", '
        f'"lastUpdated": "2024-01-01T00:00:{version:02}Z"}}, "valueQuantity": {{"value": 1.00}}}}'
    )


def bundle(texts: Sequence[str], *, total: Any = None, following: str | None = None, **others: Any) -> str:
    """A search result as text."""
    parts = {"resourceType": "Bundle", "type": "searchset", **others}
    if total is not None:
        parts["total"] = total
    if following is not None:
        parts["link"] = [{"relation": "self", "url": BASE}, {"relation": "next", "url": following}]
    entries = ", ".join(f'{{"fullUrl": "urn:{place}", "resource": {text}}}' for place, text in enumerate(texts))
    return json.dumps(parts)[:-1] + f', "entry": [{entries}]}}'


def fhir(text: str, status: int = 200, **headers: str) -> httpx.Response:
    """A reply."""
    return httpx.Response(status, text=text, headers={"Content-Type": FHIR_JSON, "Date": DATE, **headers})


def outcome(diagnostics: str, severity: str = "error") -> str:
    """An OperationOutcome as text."""
    issue = {"severity": severity, "code": "processing", "diagnostics": diagnostics}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]})


class LyingFhir:
    """Holds resources by type, as texts, and tells the truth about them unless its lie says otherwise."""

    def __init__(self, held: dict[str, list[str]], lie: Answer | None = None, *, page: int = 1000) -> None:
        self.held = held
        self.lie = lie
        self.page = page
        self.asked: list[httpx.Request] = []

    def client(self) -> httpx.AsyncClient:
        """A client that reaches this server whatever the URL."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """The lie, or else the truth."""
        self.asked.append(request)
        told = self.lie(request) if self.lie is not None else None
        return told if told is not None else self.truth(request)

    def truth(self, request: httpx.Request) -> httpx.Response:
        """What an honest server answers."""
        path = request.url.path.removeprefix(httpx.URL(BASE).path).strip("/")
        name, _, id_ = path.partition("/")
        if path == "metadata":
            return self._metadata()
        if name not in self.held:
            return fhir(outcome(f"{name} is no type here"), 404)
        if id_:
            found = [text for text in self.held[name] if json.loads(text)["id"] == id_]
            return fhir(found[0]) if found else fhir(outcome("gone"), 410)
        return self._search(request, name)

    def _search(self, request: httpx.Request, name: str) -> httpx.Response:
        asked = parse_qs(request.url.query.decode())
        if not asked.keys() <= {"_count", "_offset", "_total"}:
            # As real servers do with a parameter that they do not know.
            return fhir(bundle([], total=0))
        size = min(self.page, int(asked.get("_count", ["20"])[0]))
        start = int(asked.get("_offset", ["0"])[0])
        texts = self.held[name]
        following = f"{BASE}/{name}?_count={size}&_offset={start + size}" if start + size < len(texts) else None
        return fhir(bundle(texts[start : start + size], total=len(texts), following=following))

    def _metadata(self) -> httpx.Response:
        listed = [{"type": name, "interaction": [{"code": "search-type"}]} for name in self.held]
        rest = [{"mode": "server", "resource": [*listed, {"type": "Binary", "interaction": [{"code": "read"}]}]}]
        return fhir(json.dumps({"resourceType": "CapabilityStatement", "rest": rest}))
