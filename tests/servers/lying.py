"""A FHIR server of our own that lies in the ways that real ones do, one lie at a time."""

import copy
import json
from collections.abc import Callable, Sequence
from itertools import count
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
    return gathered(
        [f'{{"fullUrl": "urn:{place}", "resource": {text}}}' for place, text in enumerate(texts)],
        total=total,
        following=following,
        **others,
    )


def history(entries: Sequence[str], *, total: Any = None, following: str | None = None, **others: Any) -> str:
    """A history as text."""
    return gathered(entries, total=total, following=following, **({"type": "history"} | others))


def written(text: str) -> str:
    """An entry of a history: a resource was created, or changed."""
    return f'{{"resource": {text}, "request": {{"method": "PUT", "url": "{key_of(text)}"}}}}'


def deleted(key: str) -> str:
    """An entry of a history: a resource was deleted."""
    return json.dumps({"request": {"method": "DELETE", "url": key}, "response": {"status": "204"}})


def key_of(text: str) -> str:
    """`Patient/1` of a resource."""
    found = json.loads(text)
    return f"{found['resourceType']}/{found['id']}"


def gathered(entries: Sequence[str], *, total: Any = None, following: str | None = None, **others: Any) -> str:
    """A Bundle as text."""
    parts = {"resourceType": "Bundle", "type": "searchset", **others}
    if total is not None:
        parts["total"] = total
    if following is not None:
        parts["link"] = [{"relation": "self", "url": BASE}, {"relation": "next", "url": following}]
    return json.dumps(parts)[:-1] + f', "entry": [{", ".join(entries)}]}}'


def fhir(text: str, status: int = 200, **headers: str) -> httpx.Response:
    """A reply."""
    return httpx.Response(status, text=text, headers={"Content-Type": FHIR_JSON, "Date": DATE, **headers})


def outcome(diagnostics: str, severity: str = "error") -> str:
    """An OperationOutcome as text."""
    issue = {"severity": severity, "code": "processing", "diagnostics": diagnostics}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]})


def is_list(request: httpx.Request) -> bool:
    """Whether the resources of a type are asked for."""
    path = request.url.path.removeprefix(httpx.URL(BASE).path)
    return path.count("/") == 1 and path not in ("/metadata", "/_history")


class LyingFhir:
    """Holds resources by type, as texts, and tells the truth about them unless its lie says otherwise.

    With `keeps`, `history-type` or `history-system`, it notes what becomes of them, and declares that.
    """

    def __init__(
        self, held: dict[str, list[str]], lie: Answer | None = None, *, page: int = 1000, keeps: str = ""
    ) -> None:
        self.held = held
        self.lie = lie
        self.page = page
        self.keeps = keeps
        self.past: list[str] = []
        """What happened, the newest first."""
        self._noted: dict[str, str] = {}
        self.asked: list[httpx.Request] = []

    def client(self) -> httpx.AsyncClient:
        """A client that reaches this server whatever the URL."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """The lie, or else the truth."""
        self.asked.append(request)
        self._note()
        told = self.lie(request) if self.lie is not None else None
        return told if told is not None else self.truth(request)

    def truth(self, request: httpx.Request) -> httpx.Response:
        """What an honest server answers."""
        path = request.url.path.removeprefix(httpx.URL(BASE).path).strip("/")
        name, _, id_ = path.partition("/")
        if path == "metadata":
            return self._metadata()
        if path.endswith("_history"):
            return self._history(request, path.removesuffix("_history"))
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
        return fhir(self._page(request, self.held[name], bundle))

    def _history(self, request: httpx.Request, under: str) -> httpx.Response:
        if self.keeps != ("history-type" if under else "history-system"):
            return fhir(outcome("no history is kept"), 501)
        return fhir(self._page(request, [one for one in self.past if f'"url": "{under}' in one], history))

    def _page(self, request: httpx.Request, texts: list[str], written_as: Callable[..., str]) -> str:
        asked = request.url.params
        size, start = min(self.page, int(asked.get("_count", 20))), int(asked.get("_offset", 0))
        more = start + size < len(texts)
        following = f"{BASE}{request.url.path.removeprefix(httpx.URL(BASE).path)}?_count={size}&_offset={start + size}"
        return written_as(texts[start : start + size], total=len(texts), following=following if more else None)

    def _note(self) -> None:
        """Write down what has become of the resources since the last question."""
        if not self.keeps:
            return
        now = {key_of(text): text for texts in self.held.values() for text in texts}
        happened = [written(text) for key, text in now.items() if self._noted.get(key) != text]
        happened += [deleted(key) for key in self._noted if key not in now]
        self.past = [*reversed(happened), *self.past]
        self._noted = now

    def _metadata(self) -> httpx.Response:
        codes = [{"code": code} for code in ("search-type", self.keeps) if code]
        listed = [{"type": name, "interaction": codes} for name in self.held]
        rest = {
            "mode": "server",
            "resource": [*listed, {"type": "Binary", "interaction": [{"code": "read"}]}],
            "interaction": codes[1:],
        }
        return fhir(json.dumps({"resourceType": "CapabilityStatement", "rest": [rest]}))


def behind(server: LyingFhir, lists: int | None = None) -> Answer:
    """A search that lags: so many lists, or all, are as they are now; ids and histories are told as they are."""
    then = LyingFhir(copy.deepcopy(server.held), page=server.page)
    told = count(1)

    def lie(request: httpx.Request) -> httpx.Response | None:
        return then.truth(request) if is_list(request) and (lists is None or next(told) <= lists) else None

    return lie
