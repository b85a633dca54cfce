"""Pages and actions: a function becomes a route, a template becomes a reply."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import wraps
from typing import Any, cast

import msgspec
from starlette.datastructures import FormData

from meruit.api.auth import PUBLIC, allow, is_same_site
from meruit.api.query_params import ANY_PARAMETERS
from meruit.api.request import ApiRequest
from meruit.console.background import BackgroundFigures
from meruit.console.live import Live
from meruit.console.shape import find_zone, show_times_in
from meruit.console.tokens import FormTokens
from meruit.console.waiting import NOTHING, WaitingCounts, count_waiting, forget_counts
from meruit.errors import ApiProblem
from meruit.model.access import Caller, Role
from meruit.model.decoding import decode_json
from meruit.web.responses import Response
from meruit.web.routing import MakeRoute, Route, get, post

READERS = frozenset({Role.OPERATOR, Role.AUDITOR, Role.ADMIN})
OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
ADMINS = frozenset({Role.ADMIN})
ANYONE = frozenset(Role)

HTML = "text/html"
PAGE = "page"
"""The name of the route option that holds a page's PageInfo."""
CSRF_FIELD = "csrf"
WAITING = "waiting"
"""Where a request holds what waits for its caller."""
SMALL_BYTES = 1_400
"""A reply of one packet gains nothing from compression."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Cookie, Accept-Encoding, X-Fragment",
}


@dataclass(frozen=True, slots=True)
class NavEntry:
    """A line of the menu."""

    section: str
    """Home, Quality, Agents, Money, Proof or Service."""
    word: str
    keys: str = ""
    """The key after `g` that leads there."""
    order: int = 50


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What the console knows of a page beside its function."""

    path: str
    roles: frozenset[Role]
    nav: NavEntry | None = None
    deployment: bool = False
    """Whether only keys of the operator's tenant see it: it is about all tenants."""


class RenderedPage(Response[bytes]):
    """A page that is rendered when it is sent, in a thread: a long one takes many milliseconds."""

    __slots__ = ("_compress", "_render")

    def __init__(self, render: Callable[[], str], *, compress: bool, status_code: int) -> None:
        super().__init__(b"", status_code=status_code, headers=SECURITY_HEADERS, media_type=HTML)
        self._render: Callable[[], str] | None = render
        self._compress = compress

    async def make(self) -> None:
        """Render it, once."""
        if self._render is not None:
            render, self._render = self._render, None
            self.content = await asyncio.to_thread(self._encode, render)

    def _encode(self, render: Callable[[], str]) -> bytes:
        content = render().encode("utf-8", "replace")
        if not self._compress or len(content) <= SMALL_BYTES:
            return content
        self.headers["Content-Encoding"] = "gzip"
        return gzip.compress(content, compresslevel=5, mtime=0)


class PageRequest(ApiRequest):
    """A request of a browser for a page."""

    @property
    def console(self) -> "Console":
        """What all pages share."""
        return cast("Console", self.app.state["console"])

    @property
    def now(self) -> datetime:
        """The time, which a page says ages by."""
        return self.service.store.surroundings.clock()

    @property
    def zone(self) -> tzinfo:
        """The time zone that this browser chose; UTC where it chose none."""
        return find_zone(self.cookies.get(ZONE_COOKIE, ""))

    @property
    def waiting(self) -> WaitingCounts:
        """What waits for the caller; nothing where it was not counted."""
        found: WaitingCounts = self.scope["state"].get(WAITING, NOTHING)
        return found

    @property
    def origin(self) -> str:
        """Where the browser reached this service, for examples to try."""
        return f"{self.url.scheme}://{self.url.netloc}"

    @property
    def needs_key(self) -> bool:
        """Whether the API asks this caller for a key: without keys, those of this machine need none."""
        return SESSION_COOKIE in self.cookies

    @property
    def is_fragment(self) -> bool:
        """Whether the page's script asks for a part of a page, such as a dialog."""
        return "x-fragment" in self.headers

    @property
    def can_operate(self) -> bool:
        """Whether the caller may act."""
        return self.caller.role in OPERATORS

    def seal(self, content: str) -> str:
        """A mark that this caller posted the content."""
        return self.console.tokens.seal(content, self.cookies.get(SESSION_COOKIE))

    def new_csrf_token(self) -> str:
        """A token that a form of this caller must hold."""
        return self.console.tokens.issue(self.cookies.get(SESSION_COOKIE))

    # Any, here and below: a template takes any values.
    def show(self, template: str, *, status: int = 200, live: Live | None = None, **values: Any) -> Response[bytes]:
        """Reply with a template of the console, rendered in a thread; compressed where the browser takes it."""
        show_times_in(self.zone)
        values = {"request": self, "caller": self.scope.get("user"), "now": self.now, "live": live, **values}
        compress = "gzip" in self.headers.get("accept-encoding", "")
        return RenderedPage(lambda: self.console.render(template, values), compress=compress, status_code=status)

    def go_to(self, path: str, message: str = "") -> Response[bytes]:
        """Lead the browser to another page after an act; `said` is shown there once."""
        if message:
            self.console.toasts.put(self.toast_key, message)
        return Response(b"", status_code=303, headers={**SECURITY_HEADERS, "Location": path}, media_type=HTML)

    @property
    def toast_key(self) -> str:
        """Whose message it is: that of one browser, or of this machine where no key exists."""
        return self.cookies.get(SESSION_COOKIE) or ""

    def take_toast(self) -> str:
        """The message about what this browser just did; it is shown once."""
        return self.console.toasts.take(self.toast_key)


SESSION_COOKIE = "meruit_session"
ZONE_COOKIE = "meruit_zone"

Show = Callable[[PageRequest], Awaitable[Response[Any]]]


class Toasts:
    """Short messages that wait for the next page of a browser; the oldest ones go when there are too many."""

    MOST = 1_000

    def __init__(self, send: Callable[[bytes], None] = lambda _content: None) -> None:
        """`send` sends changes to other workers, for their `receive`: any of them may serve the next page."""
        self._messages: dict[str, str] = {}
        self._send = send

    def put(self, key: str, message: str) -> None:
        """Keep the message for the next page."""
        self._keep(key, message)
        self._send(msgspec.json.encode((key, message)))

    def receive(self, content: bytes) -> None:
        """Keep or drop a message that another worker sent."""
        key, message = decode_json(content, tuple[str, str])
        self._keep(key, message)

    def _keep(self, key: str, message: str) -> None:
        self._messages.pop(key, None)
        if not message:
            return
        self._messages[key] = message
        if len(self._messages) > self.MOST:
            del self._messages[next(iter(self._messages))]

    def take(self, key: str) -> str:
        """The message, once; empty where there is none."""
        found = self._messages.pop(key, "")
        if found:
            self._send(msgspec.json.encode((key, "")))
        return found


@dataclass(frozen=True, slots=True)
class Console:
    """What all pages share."""

    # Any: a template takes any values.
    render: Callable[[str, Mapping[str, Any]], str]
    tokens: FormTokens
    pages: tuple[PageInfo, ...]
    visitor: Caller | None
    """Who everyone is where records are only viewed; else callers sign in."""
    toasts: Toasts
    figures: BackgroundFigures
    answers: BackgroundFigures
    """What judges are asked: apart, because models take minutes and figures must not wait for them."""


def page(
    path: str, *, roles: frozenset[Role] = READERS, nav: NavEntry | None = None, deployment: bool = False
) -> MakeRoute:
    """Make a page of a function that takes the request, and parameters of the path by their names.

    With `deployment`, only keys of the tenant that the settings name as operator see it.
    """
    info = PageInfo(path, roles, nav, deployment)
    options = {PUBLIC: True, ANY_PARAMETERS: True, PAGE: info}
    guards = [allow(*roles), _require_operator_tenant] if deployment else [allow(*roles)]

    def make(show: Callable[..., Awaitable[Response[Any]]]) -> Route:
        @wraps(show)
        async def count_and_show(*values: Any, **named: Any) -> Response[Any]:
            await _count_for_menu(named["request"])
            return await show(*values, **named)

        return get(path, guards=guards, opt=options, include_in_schema=False)(count_and_show)

    return make


async def _count_for_menu(request: PageRequest) -> None:
    """Count what waits for the caller, for the menu; a part of a page has no menu, and an agent decides nothing."""
    if request.caller.role is not Role.AGENT and not request.is_fragment:
        store, tenant, now = request.service.store, request.caller.tenant, request.now
        request.scope["state"][WAITING] = await asyncio.to_thread(count_waiting, store, tenant, now)


async def _require_operator_tenant(request: PageRequest, _route: Route) -> None:
    operators = request.service.settings.operator_tenant
    if request.caller.tenant != operators:
        raise ApiProblem(403, "forbidden", f"only keys of the tenant {operators} see all tenants")


def action(
    path: str, *, roles: frozenset[Role] = OPERATORS
) -> Callable[[Callable[..., Awaitable[Response[Any]]]], Route]:
    """Make an act of a function; its posted form must hold a token of the same session. Read it as `request.sent`."""
    options = {PUBLIC: True, ANY_PARAMETERS: True}

    def make(act: Callable[..., Awaitable[Response[Any]]]) -> Route:
        @wraps(act)
        async def check_and_act(*values: Any, **named: Any) -> Response[Any]:
            request: PageRequest = named["request"]
            await check_form(request)
            try:
                return await act(*values, **named)
            finally:
                forget_counts(request.service.store, request.caller.tenant)

        return post(path, status_code=200, guards=[allow(*roles)], opt=options, include_in_schema=False)(check_and_act)

    return make


async def check_form(request: PageRequest) -> FormData:
    """The posted form; raises ApiProblem 403 for one that another site may have made."""
    if not is_same_site(request):
        raise ApiProblem(403, "other_site", "another site sent this form; nothing was done")
    form: FormData = await request.form()
    token = str(form.get(CSRF_FIELD) or request.headers.get("x-csrf-token") or "")
    if not request.console.tokens.accepts(token, request.cookies.get(SESSION_COOKIE)):
        raise ApiProblem(403, "stale_form", "this form is too old or from another session; reload the page, try again")
    return form


async def read_field(request: PageRequest, name: str, longest: int = 2_000) -> str:
    """One text of the posted form, without spaces around; raises ApiProblem for one that is too long."""
    text = str((await request.form()).get(name) or "").strip()
    if len(text) > longest:
        raise ApiProblem(400, "invalid", f"{name} has {len(text)} characters; at most {longest} are taken")
    return text
