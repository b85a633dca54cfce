"""The payer's portal, used as a clerk uses it: over forms, and once in a real browser."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meruit.errors import MeruitError, PriorAuthNotAllowed
from meruit.model.environment import SourceKind
from meruit.playground.portal import app as portal
from meruit.playground.portal import forms as portal_forms
from meruit.playground.portal import pages as portal_pages
from meruit.playground.portal import payer
from meruit.playground.portal.payer import PriorAuthDocument, PriorAuthRequest
from meruit.playground.state import PlaygroundState

SECRET = "s3cret-of-the-playground"
NOON = datetime(2026, 3, 6, 12, tzinfo=UTC)
PDF = ("MRI report.pdf", b"%PDF-1.7 report", "application/pdf")
SOUND = {"member": "MEM88771", "npi": "1234567893", "cpt": "72148", "diagnosis": "m54.16", "urgency": "urgent"}
ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
CHROMIUM = shutil.which("chromium")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(tmp_path: Path, clock: Clock) -> PlaygroundState:
    return made(tmp_path / "one.playground", clock)


def made(path: Path, clock: Clock) -> PlaygroundState:
    found = PlaygroundState.create(path, clock=clock, settings={"secret": SECRET})
    put(found, "member/MEM88771", {"id": "MEM88771", "name": "Ann Smith", "plan": "Gold", "active": True, "copay": 10})
    put(found, "member/MEM2", {"id": "MEM2", "name": "Lee Off", "active": False})
    put(found, "claim/CLM-1", {"id": "CLM-1", "member": "MEM88771", "amount": "450.00", "status": "paid"})
    put(found, "auth_rule/1", {"cpt": "15823", "decision": "not_certified", "reason": "Cosmetic."})
    put(found, "auth_rule/2", {"cpt": "27447", "documents": 1, "decision": "certified"})
    put(found, "message/1", {"subject": "Holiday hours", "body": "We are closed.", "at": "2026-03-01T09:00:00Z"})
    return found


def put(state: PlaygroundState, key: str, row: object) -> None:
    state.put(SourceKind.ROWS, key, json.dumps(row).encode(), event="seed")


class Clerk:
    """Fills in forms as a browser would: with whatever hidden fields the page has."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def see(self, place: str, status: int = 200) -> str:
        reply = await self.client.get(f"/playgrounds/one/portal/{place}", follow_redirects=True)
        assert reply.status_code == status, reply.text
        return reply.text

    async def send(
        self, place: str, fields: dict[str, str], files: Any = None, *, on: str | None = None, status: int = 200
    ) -> str:
        token = re.search(r'name="csrf" value="([^"]+)"', await self.see(place if on is None else on))
        assert token is not None
        reply = await self.client.post(
            f"/playgrounds/one/portal/{place}", data={**fields, "csrf": token[1]}, files=files, follow_redirects=True
        )
        assert reply.status_code == status, reply.text
        return unescape(reply.text)

    async def log_in(self) -> None:
        assert "Signed in as clerk" in await self.send("login", {"username": "clerk", "password": SECRET})


def visiting(state: PlaygroundState, act: Callable[[Clerk], Coroutine[Any, Any, None]], *, log_in: bool = True) -> None:
    # Any: what ASGI's dictionaries hold is for the application to know.
    mounted: Any = portal.app({"one": state}.get)

    async def under_prefix(scope: Any, receive: Any, send: Any) -> None:
        """As the host mounts it."""
        path = scope["path"].removeprefix("/playgrounds")
        await mounted({**scope, "path": path, "raw_path": path.encode(), "root_path": "/playgrounds"}, receive, send)

    async def run() -> None:
        transport = httpx.ASGITransport(app=under_prefix)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            clerk = Clerk(client)
            if log_in:
                await clerk.log_in()
            await act(clerk)

    asyncio.run(run())


def requests_of(state: PlaygroundState) -> list[dict[str, Any]]:
    return payer.rows(state, "prior_auth")


def test_a_request_with_an_upload_becomes_a_row(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        page = await clerk.send("requests/new", {**SOUND, "notes": "Pain & weakness"}, {"attachments": PDF})
        assert portal_pages.NOTICES["submitted"] in page
        assert "Request PA-000001" in page
        assert "MRI report.pdf" in page
        assert "Ann Smith" in page

    visiting(state, act)
    (row,) = requests_of(state)
    moment = "2026-03-06T12:00:00.000000Z"
    assert row == {
        "id": "PA-000001",
        "member": "MEM88771",
        "cpt": "72148",
        "diagnosis": "M54.16",
        "urgency": "urgent",
        "npi": "1234567893",
        "notes": "Pain & weakness",
        "status": "pending",
        "attachments": ["MRI report.pdf"],
        "documents": [
            {"name": PDF[0], "size": len(PDF[1]), "sha256": sha256(PDF[1]).hexdigest(), "type": "application/pdf"}
        ],
        "created_at": moment,
        "history": [{"at": moment, "event": "submitted", "by": "clerk"}],
        "channel": "portal",
    }
    assert [event.type for event in state.events() if event.type != "seed"] == ["portal_login", "prior_auth_created"]


WRONG = [
    ({"member": ""}, "member", "Enter the member’s ID."),
    ({"member": "NOBODY"}, "member", "No member has this ID."),
    ({"member": "MEM2"}, "member", "coverage is not active"),
    ({"member": "x" * 5000}, "member", "No member has this ID."),
    ({"npi": "12345"}, "npi", "Enter the provider’s NPI"),
    ({"cpt": "MRI"}, "cpt", "Enter a CPT or HCPCS code"),
    ({"diagnosis": "back pain"}, "diagnosis", "Enter an ICD-10 code"),
    ({"urgency": "whenever"}, "urgency", "how urgent"),
    ({"notes": "x" * 5000}, "notes", "4,000 characters"),
]


@pytest.mark.parametrize(("changed", "field", "said"), WRONG, ids=range(len(WRONG)))
def test_form_errors_name_the_field_and_keep_the_rest(
    state: PlaygroundState, changed: dict[str, str], field: str, said: str
) -> None:
    async def act(clerk: Clerk) -> None:
        page = await clerk.send("requests/new", {**SOUND, **changed}, {"attachments": PDF}, status=422)
        assert page.count(said) == 2
        assert f'href="#{field}"' in page
        assert f'id="{field}"' in page
        if field != "npi":
            assert 'value="1234567893"' in page
        assert "attachments again" in page

    visiting(state, act)
    assert requests_of(state) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("virus.exe", b"MZ", "virus.exe"),
        ("empty.pdf", b"", "is empty"),
        ("big.pdf", b"x" * 101, "too large"),
        (f"{'x' * 200}.pdf", b"x", "120 characters"),
    ],
)
def test_documents_that_cannot_be_taken_are_refused(
    state: PlaygroundState, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, said: str
) -> None:
    monkeypatch.setattr(portal_forms, "MAX_UPLOAD_BYTES", 100)

    async def act(clerk: Clerk) -> None:
        page = await clerk.send("requests/new", SOUND, {"attachments": (name, content)}, status=422)
        assert said in page
        many = [("attachments", (f"{number}.pdf", b"x")) for number in range(11)]
        assert "10 documents" in await clerk.send("requests/new", SOUND, many, status=422)

    visiting(state, act)
    assert requests_of(state) == []


def test_folders_in_a_documents_name_are_left_out(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        files = [("attachments", ("../../etc/a.pdf", b"x")), ("attachments", ("C:\\scans\\b.TXT", b"y"))]
        await clerk.send("requests/new", SOUND, files)

    visiting(state, act)
    assert requests_of(state)[0]["attachments"] == ["a.pdf", "b.TXT"]


def test_the_payer_decides_again_after_new_documents(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        assert "Pending" in (await clerk.send("requests/new", {**SOUND, "cpt": "27447"})).title()
        here, place = "requests/PA-000001", "requests/PA-000001/documents"
        assert 'href="#documents"' in await clerk.send(place, {}, on=here, status=422)
        refused = await clerk.send(place, {}, {"documents": ("x.exe", b"x")}, on=here, status=422)
        assert "x.exe" in refused
        page = await clerk.send(place, {}, {"documents": PDF}, on=here)
        assert "AUTH-000001" in page
        assert portal_pages.NOTICES["uploaded"] in page
        assert "approved" in await clerk.send(place, {}, {"documents": PDF}, on="requests", status=409)

    visiting(state, act)
    (row,) = requests_of(state)
    assert (row["status"], row["auth_number"], len(row["documents"])) == ("approved", "AUTH-000001", 1)
    assert [one["event"] for one in row["history"]] == ["submitted", "documents added", "approved"]


def test_a_denial_is_explained_and_appealed(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        assert "Cosmetic." in await clerk.send("requests/new", {**SOUND, "cpt": "15823"})
        here, place = "requests/PA-000001", "requests/PA-000001/appeal"
        assert 'href="#reason"' in await clerk.send(place, {"reason": " "}, on=here, status=422)
        assert "4,000" in await clerk.send(place, {"reason": "x" * 4001}, on=here, status=422)
        page = await clerk.send(place, {"reason": "Her eyelid covers the pupil."}, on=here)
        assert portal_pages.NOTICES["appealed"] in page
        assert "Her eyelid covers the pupil." in page
        await clerk.send(place, {"reason": "again"}, on=here, status=409)

    visiting(state, act)
    assert requests_of(state)[0]["status"] == "appealed"
    (appeal,) = payer.rows(state, "appeal")
    assert (appeal["id"], appeal["prior_auth"], appeal["reason"]) == (
        *("AP-000001", "PA-000001", "Her eyelid covers the pupil."),
    )
    assert [event.type for event in state.events()][-2:] == ["appeal_created", "prior_auth_appealed"]


def test_a_request_is_withdrawn_once(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        await clerk.send("requests/new", SOUND)
        here, place = "requests/PA-000001", "requests/PA-000001/withdraw"
        assert portal_pages.NOTICES["withdrawn"] in await clerk.send(place, {}, on=here)
        assert "withdrawn" in await clerk.send(place, {}, on=here, status=409)
        await clerk.send("requests/NOTHING/withdraw", {}, on=here, status=409)

    visiting(state, act)
    assert requests_of(state)[0]["status"] == "withdrawn"


def test_lists_are_filtered_and_paged(state: PlaygroundState) -> None:
    for number in range(1, 31):
        status = "denied" if number == 7 else "pending"
        put(state, f"prior_auth/PA-{number:06}", {"member": "MEM88771", "status": status})

    async def act(clerk: Clerk) -> None:
        first, second = await clerk.see("requests"), await clerk.see("requests?page=2")
        assert ("PA-000030" in first, "PA-000001" in first, "Page 1 of 2" in first) == (True, False, True)
        assert ("PA-000030" in second, "PA-000001" in second) == (False, True)
        denied = await clerk.see("requests?status=denied")
        assert re.findall(r">(PA-\d+)<", denied) == ["PA-000007"]
        assert "No request has this status." in await clerk.see("requests?status=approved")
        for odd in ("page=0", "page=-1", "page=x", "page=999999", "status=nonsense"):
            assert "PA-0000" in await clerk.see(f"requests?{odd}")

    visiting(state, act)


def test_members_are_found_and_messages_read(state: PlaygroundState) -> None:
    put(state, "message/2", {"subject": "About your request", "body": "Call us.", "prior_auth": "PA-000001"})

    async def act(clerk: Clerk) -> None:
        for asked in ("MEM88771", "mem88771", "smith", "Ann+SMITH"):
            assert "Ann Smith" in await clerk.see(f"members?q={asked}")
        assert "No member was found" in await clerk.see("members?q=Jones")
        assert "MEM" not in re.sub("<form.*?</form>", "", await clerk.see("members"), flags=re.DOTALL)
        page = await clerk.see("members/MEM88771")
        assert all(one in page for one in ("Gold", "$10.00", "CLM-1", "$450.00", "Active"))
        assert 'value="MEM88771"' in await clerk.see("requests/new?member=MEM88771")
        await clerk.see("members/NOBODY", 404)
        messages = await clerk.see("messages")
        assert messages.index("Holiday hours") < messages.index("About your request")
        assert "1 March 2026, 09:00" in messages

    visiting(state, act)


def test_a_page_of_the_portal_needs_a_login(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        for place in ("", "requests", "requests/new", "requests/PA-000001", "members", "members/MEM2", "messages"):
            page = await clerk.see(place)
            assert "<h1>Sign in</h1>" in page
            assert "Ann Smith" not in page
        reply = await clerk.client.post("/playgrounds/one/portal/requests/new", data=SOUND)
        assert (reply.status_code, reply.headers["location"]) == (303, "/playgrounds/one/portal/login")

    visiting(state, act, log_in=False)
    assert requests_of(state) == []


def test_only_the_secret_opens_the_portal(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        for user, password in (("clerk", "wrong"), ("admin", SECRET), ("", ""), ("clérk", "pässword")):
            page = await clerk.send("login", {"username": user, "password": password}, status=401)
            assert "is wrong" in page
            assert 'type="password" value=""' in page
        await clerk.log_in()
        assert "Prior authorizations" in await clerk.see("login")
        assert "Prior authorizations" in await clerk.see("")
        await clerk.see("requests/NOTHING", 404)
        assert "<h1>Sign in</h1>" in await clerk.send("logout", {}, on="requests")
        assert "<h1>Sign in</h1>" in await clerk.see("requests")

    visiting(state, act, log_in=False)
    types = [event.type for event in state.events() if event.type != "seed"]
    assert types == ["portal_login_failed"] * 4 + ["portal_login", "portal_logout"]
    assert SECRET not in json.dumps([event.to_dict() for event in state.events()])


def test_a_session_is_signed_and_ends(state: PlaygroundState, clock: Clock, tmp_path: Path) -> None:
    another = PlaygroundState.create(tmp_path / "two.playground", settings={"secret": "another"})

    async def act(clerk: Clerk) -> None:
        reply = await clerk.client.get("/playgrounds/one/portal/requests")
        assert reply.status_code == 200
        kept = clerk.client.cookies["session"]
        for forged in ("", "in-1-x", kept.replace("in-", "out-"), kept[:-1], f"in-{kept}", "in.", "é.x"):
            clerk.client.cookies.clear()
            reply = await clerk.client.get(
                "/playgrounds/one/portal/requests", headers={b"Cookie": f"session={forged}".encode()}
            )
            assert reply.status_code == 303
        assert portal_pages._sign(another, "session", "x") != portal_pages._sign(state, "session", "x")
        clerk.client.cookies.set("session", kept, domain="test", path="/playgrounds/one/portal")
        clock.now += timedelta(hours=9)
        assert "<h1>Sign in</h1>" in await clerk.see("requests")

    visiting(state, act)


def test_a_form_from_elsewhere_is_refused(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        for token in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "é"}):
            for place in ("requests/new", "requests/PA-000001/withdraw", "logout"):
                reply = await clerk.client.post(f"/playgrounds/one/portal/{place}", data={**SOUND, **token})
                assert reply.status_code == 403
        clerk.client.cookies.clear()
        reply = await clerk.client.post(
            "/playgrounds/one/portal/login", data={"username": "clerk", "password": SECRET, "csrf": "x"}
        )
        assert reply.status_code == 403

    visiting(state, act)
    assert requests_of(state) == []


def test_pages_and_cookies_are_guarded(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        reply = await clerk.client.get("/playgrounds/one/portal/login")
        cookie = reply.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Path=/playgrounds/one/portal"))
        for place in ("login", "requests", "style.css", "nowhere", "members/NOBODY"):
            reply = await clerk.client.get(f"/playgrounds/one/portal/{place}")
            policy = reply.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in re.sub(r'href="https?://test', "", reply.text)
            assert "<script" not in reply.text
            assert "style=" not in reply.text
        assert portal_pages.ERROR_MESSAGES[404] in await clerk.see("nowhere", 404)
        reply = await clerk.client.get("/playgrounds/two/portal/login")
        assert reply.status_code == 404
        assert (await clerk.client.delete("/playgrounds/one/portal/login")).status_code == 405

    visiting(state, act, log_in=False)


@pytest.mark.parametrize("log_in", [True, False])
@pytest.mark.parametrize(
    "address", ["one/portal/nowhere", "one/portal/a/b/c/d", "two/portal/login", "two/portal/nowhere"]
)
def test_a_missing_page_has_its_style_and_a_link_back(state: PlaygroundState, address: str, log_in: bool) -> None:
    async def act(clerk: Clerk) -> None:
        reply = await clerk.client.get(f"/playgrounds/{address}")
        assert reply.status_code == 404
        base = f"/playgrounds/{address[:3]}/portal"
        loaded = [tag["href"] for name, tag in Tags(reply.text).found if name == "link"]
        assert loaded == [f"{base}/icon.svg", f"{base}/style.css"]
        for one in loaded:
            assert (await clerk.client.get(str(one))).status_code == 200
        led = {tag["href"] for name, tag in Tags(reply.text).found if name == "a"} - {"#content"}
        assert led == {f"{base}/requests"}

    visiting(state, act, log_in=log_in)


def test_every_answer_says_once_what_it_is(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        for place, told in (
            ("login", "text/html; charset=utf-8"),
            ("requests", "text/html; charset=utf-8"),
            ("nowhere", "text/html; charset=utf-8"),
            ("style.css", "text/css; charset=utf-8"),
            ("icon.svg", "image/svg+xml"),
        ):
            reply = await clerk.client.get(f"/playgrounds/one/portal/{place}")
            assert (place, reply.headers["content-type"]) == (place, told)

    visiting(state, act, log_in=False)


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_what_is_written_is_shown_and_never_run(state: PlaygroundState) -> None:
    key = "prior_auth/PA-000009"
    nasty = dict.fromkeys(("member", "cpt", "diagnosis", "urgency", "npi", "notes", "status", "auth_number"), ATTACK)
    put(state, key, {**nasty, "attachments": [ATTACK], "documents": [{"name": ATTACK, "size": ATTACK}]})
    put(state, f"member/{ATTACK}", dict.fromkeys(("name", "plan", "group", "copay", "birth_date"), ATTACK))
    put(state, "message/9", dict.fromkeys(("subject", "body", "at", "prior_auth"), ATTACK))

    async def act(clerk: Clerk) -> None:
        pages = [await clerk.see(place) for place in ("requests", "requests/PA-000009", "messages")]
        pages.append((await clerk.client.get("/playgrounds/one/portal/members", params={"q": ATTACK})).text)
        pages.append((await clerk.client.get("/playgrounds/one/portal/requests/new", params={"member": ATTACK})).text)
        reply = await clerk.client.post(
            "/playgrounds/one/portal/requests/new",
            data={**dict.fromkeys(SOUND, ATTACK), "csrf": re.findall(r'name="csrf" value="([^"]+)"', pages[0])[0]},
        )
        for page in [*pages, reply.text]:
            tags = Tags(page).found
            assert not {"script", "img"} & {tag for tag, _ in tags}
            assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
            assert "alert" in unescape(page)

    visiting(state, act)


def test_every_field_has_a_label_and_every_page_a_title(state: PlaygroundState) -> None:
    put(state, "prior_auth/PA-000001", {"member": "MEM88771", "status": "denied"})
    put(state, "prior_auth/PA-000002", {"member": "MEM88771", "status": "pending"})

    async def act(clerk: Clerk) -> None:
        places = ("requests", "requests/new", "requests/PA-000001", "requests/PA-000002", "members?q=smith")
        for place in (*places, "members/MEM88771", "messages"):
            page = await clerk.see(place)
            tags = Tags(page).found
            labels = {attributes.get("for") for tag, attributes in tags if tag == "label"}
            fields = [attributes for tag, attributes in tags if tag in ("input", "select", "textarea")]
            named = [one for one in fields if one.get("type") not in ("hidden", "radio")]
            assert {one.get("id") for one in named} <= labels
            ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
            assert len(ids) == len(set(ids))
            described = [part for one in fields for part in (one.get("aria-describedby") or "").split()]
            assert set(described) <= set(ids)
            assert page.count("<h1>") == 1
            assert re.search(r"<title>\S.* · Cedar Health Plan</title>", page)
            assert 'lang="en"' in page

    visiting(state, act)


ANYTHING = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=2)
FIELDS = ("member", "cpt", "status", "history", "documents", "attachments", "created_at", "notes", "urgency", "name")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from((*FIELDS, "copay", "plan", "active", "amount", "at", "body")), ANYTHING))
def test_rows_of_any_kind_are_shown(tmp_path_factory: pytest.TempPathFactory, row: dict[str, object]) -> None:
    state = made(tmp_path_factory.mktemp("any") / "one.playground", Clock())
    for key in ("prior_auth/X", "member/X", "claim/X", "message/X"):
        put(state, key, {**row, "member": "X"} if key == "claim/X" else row)

    async def act(clerk: Clerk) -> None:
        for place in ("requests", "requests/X", "members?q=x", "members/X", "messages"):
            await clerk.see(place)

    visiting(state, act)
    state.close()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"--x\r\nbroken", "multipart/form-data; boundary=x"),
        (b"nothing", "multipart/form-data"),
        (b"\xff\xfe=%zz&csrf=%ff", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"", "text/plain"),
    ],
)
def test_what_is_no_form_is_refused(state: PlaygroundState, content: bytes, kind: str) -> None:
    async def act(clerk: Clerk) -> None:
        reply = await clerk.client.post(
            "/playgrounds/one/portal/requests/new", content=content, headers={"Content-Type": kind}
        )
        assert reply.status_code in (400, 403)
        assert "<h1>" in reply.text

    visiting(state, act)


def test_a_body_without_end_is_refused(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portal, "MAX_BODY_BYTES", 2_000)

    async def act(clerk: Clerk) -> None:
        page = await clerk.send("requests/new", SOUND, {"attachments": ("a.pdf", b"x" * 5_000)}, status=413)
        assert portal_pages.ERROR_MESSAGES[413] in page

    visiting(state, act)


def test_a_portal_that_cannot_be_read_says_so(state: PlaygroundState) -> None:
    async def act(clerk: Clerk) -> None:
        state.close()
        hidden = state.path.rename(state.path.with_suffix(".hidden"))
        await clerk.see("requests", 503)
        hidden.rename(state.path)

    visiting(state, act)


def test_without_jinja_it_says_what_to_install(state: PlaygroundState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    portal_pages.templates.cache_clear()
    with pytest.raises(MeruitError, match=re.escape("meruit[playground]")):
        portal.app({"one": state}.get)


def test_request_numbers_continue_those_of_the_seed(state: PlaygroundState) -> None:
    put(state, "prior_auth/PA-000041", {"status": "pending", "documents": "none", "history": None})
    put(state, "prior_auth/PA-x", ["no row"])
    assert payer.submit(state, PriorAuthRequest("MEM88771", "72148"))["id"] == "PA-000042"
    many = [PriorAuthDocument("a", 1, "", "")] * 51
    with pytest.raises(PriorAuthNotAllowed, match="50 documents"):
        payer.add_documents(state, "PA-000041", many, by="clerk")
    assert payer.add_documents(state, "PA-000041", many[:1], by="clerk")["attachments"] == ["a"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_the_portal_works_without_javascript(state: PlaygroundState, tmp_path: Path) -> None:
    import uvicorn
    from playwright.async_api import async_playwright

    (tmp_path / "MRI lumbar.pdf").write_bytes(PDF[1])
    complaints: list[str] = []

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(portal.app({"one": state}.get), log_config=None, lifespan="off")
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                # The socket listens already, so a browser that comes too early waits.
                await browse(f"http://127.0.0.1:{listener.getsockname()[1]}/one/portal")
            finally:
                server.should_exit = True
                await serving

    async def browse(url: str) -> None:
        async with async_playwright() as driver, contextlib.AsyncExitStack() as closing:
            browser = await driver.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            closing.push_async_callback(browser.close)
            page = await browser.new_page(java_script_enabled=False)
            page.on("console", lambda message: complaints.append(message.text))
            await page.goto(url)
            await page.get_by_label("User name").fill("clerk")
            await page.get_by_label("Password").fill(SECRET)
            await page.get_by_role("button", name="Sign in").click()
            await page.get_by_role("link", name="New request").click()
            await page.get_by_label("Member ID").fill("MEM88771")
            await page.get_by_role("button", name="Submit request").click()
            await page.get_by_role("alert").wait_for()
            await page.get_by_label("Provider NPI").fill("1234567893")
            await page.get_by_label("CPT or HCPCS code").fill("72148")
            await page.get_by_label("Diagnosis code (ICD-10)").fill("M54.16")
            await page.get_by_label("Urgent").check()
            await page.get_by_label("Clinical notes").fill("Six weeks of therapy.\nNo relief.")
            await page.get_by_label("Attachments").set_input_files(tmp_path / "MRI lumbar.pdf")
            await page.get_by_role("button", name="Submit request").click()
            await page.get_by_role("heading", name="Request PA-000001").wait_for()
            await page.get_by_text("MRI lumbar.pdf").wait_for()
            # The stylesheet was allowed by the policy.
            header = await page.locator("header").evaluate("one => getComputedStyle(one).backgroundColor")
            assert header == "rgb(15, 76, 92)"

    asyncio.run(run())
    # The form that was refused is told of by its status, and nothing else by anything.
    assert [one for one in complaints if "422" not in one] == []
    (row,) = requests_of(state)
    assert (row["urgency"], row["attachments"], row["notes"]) == (
        *("urgent", ["MRI lumbar.pdf"], "Six weeks of therapy.\nNo relief."),
    )


def test_a_full_portal_refuses_writes_and_can_be_read(state: PlaygroundState) -> None:
    state.set(quota_bytes=state.used_bytes())

    async def act(clerk: Clerk) -> None:
        page = await clerk.send("requests/new", {**SOUND, "notes": "x" * 3_000}, {"attachments": PDF}, status=507)
        assert "<h1>" in page
        assert "Holiday hours" in await clerk.see("messages")

    visiting(state, act)
    assert requests_of(state) == []
