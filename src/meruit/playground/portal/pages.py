"""The portal's pages: templates, sessions, and messages for errors."""

import hashlib
import hmac
import secrets
from datetime import datetime
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from meruit.checks.values.decimals import numeral
from meruit.errors import HttpRefusal, MeruitError, NotLoggedIn, PlaygroundFull, PlaygroundRefusal, Unreachable
from meruit.playground.http import PlaygroundRequest, playground_id_of, playground_of
from meruit.playground.portal import payer
from meruit.playground.state import PlaygroundState
from meruit.web.responses import Cookie, Response

if TYPE_CHECKING:
    import jinja2

PAYER = "Cedar Health Plan"
USER = "clerk"
COOKIE = "session"
HTML = "text/html"
"""The content type of pages; a reply adds the charset to every kind of text."""
SESSION_S = 8 * 3600
"""How long a login is valid."""
NOTICES = {
    "submitted": "Your request was submitted.",
    "uploaded": "Your documents were added.",
    "withdrawn": "The request was withdrawn.",
    "appealed": "Your appeal was submitted.",
}
"""Messages after an action, by a word in the address."""
ERROR_MESSAGES = {
    400: "The portal could not understand what your browser sent.",
    404: "This page does not exist.",
    405: "This page cannot be used in that way.",
    413: "That was too much at once. Send fewer or smaller documents.",
}
"""Messages for a visitor, by status."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NEEDS = "the portal needs jinja2: pip install 'meruit[playground]'"


class PortalSession(msgspec.Struct, frozen=True):
    """A browser, logged in or not."""

    token: str
    """The content of its cookie, without the signature."""
    known: bool


def _sign(state: PlaygroundState, purpose: str, token: str) -> str:
    key = str(state.settings()["secret"]).encode()
    return hmac.new(key, f"portal:{purpose}:{token}".encode(), hashlib.sha256).hexdigest()


def new_session(state: PlaygroundState, *, known: bool) -> PortalSession:
    """Start a session."""
    return PortalSession(f"{'in' if known else 'out'}-{int(state.clock().timestamp())}-{secrets.token_hex(16)}", known)


def session_of(request: PlaygroundRequest, state: PlaygroundState) -> PortalSession:
    """Return the session of a request's cookie; a new one, not logged in, without a valid one."""
    token, _, signature = request.cookies.get(COOKIE, "").partition(".")
    if hmac.compare_digest(signature.encode(), _sign(state, "session", token).encode()):
        kind, began, _ = token.split("-")
        if 0 <= state.clock().timestamp() - int(began) < SESSION_S:
            return PortalSession(token, kind == "in")
    return new_session(state, known=False)


def require_login(request: PlaygroundRequest, state: PlaygroundState) -> PortalSession:
    """Return the session of a logged-in visitor; raises NotLoggedIn, which leads to the login."""
    session = session_of(request, state)
    if not session.known:
        raise NotLoggedIn
    return session


def check_form_token(state: PlaygroundState, session: PortalSession, given: str) -> None:
    """Refuse a form whose token is not from our own page in the same browser."""
    expected = _sign(state, "form", session.token)
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise PlaygroundRefusal(403, "This form is out of date. Open the page again and repeat what you did.")


@cache
def templates() -> "jinja2.Environment":
    """Load the templates of the pages; raises MeruitError if jinja2 is not installed."""
    try:
        import jinja2
    except ImportError:
        raise MeruitError(NEEDS) from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("meruit.playground.portal"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(
        day=_day, moment=_moment, money=_money, quoted=quote_segment, size=_size, active=payer.is_active
    )
    return made


def base_of(request: PlaygroundRequest) -> str:
    """Return the first part of every address of this portal."""
    return f"{request.scope.get('root_path', '')}/{quote_segment(playground_id_of(request))}/portal"


# Any: pages show values of every type.
def page(
    request: PlaygroundRequest, template: str, *, session: PortalSession | None = None, status: int = 200, **values: Any
) -> Response[bytes]:
    """Render a page from a template; sets the session's cookie if the browser does not have it."""
    base, cookies, csrf = base_of(request), list[Cookie](), ""
    if session is not None:
        state = playground_of(request)
        csrf = _sign(state, "form", session.token)
        remembered = cookie(request, state, session)
        if request.cookies.get(COOKIE) != remembered.value:
            cookies = [remembered]
    content = (
        templates()
        .get_template(template)
        .render(
            base=base,
            payer=PAYER,
            user=USER if session is not None and session.known else None,
            csrf=csrf,
            notice=NOTICES.get(request.query_params.get("done", "")),
            **{"errors": {}, "typed": {}, "here": "", **values},
        )
    )
    # Half a surrogate pair cannot be written as UTF-8.
    body = content.encode("utf-8", "replace")
    return Response(body, status_code=status, media_type=HTML, headers=HEADERS, cookies=cookies)


def asset(name: str, media_type: str) -> Response[bytes]:
    """Return a file that pages load, the same for every portal; error pages load it too."""
    made = templates()
    # The environment was made with a loader.
    assert made.loader is not None  # noqa: S101
    source, _, _ = made.loader.get_source(made, name)
    headers = {**HEADERS, "Cache-Control": "max-age=3600"}
    return Response(source.encode(), media_type=media_type, headers=headers)


def cookie(request: PlaygroundRequest, state: PlaygroundState, session: PortalSession) -> Cookie:
    """Build the cookie of a session, for this portal only."""
    return Cookie(
        key=COOKIE,
        value=f"{session.token}.{_sign(state, 'session', session.token)}",
        path=base_of(request),
        httponly=True,
        samesite="lax",
        secure=request.scope.get("scheme") == "https",
    )


def redirect(request: PlaygroundRequest, place: str, cookie: Cookie | None = None) -> Response[bytes]:
    """Redirect a browser to another page."""
    headers = {**HEADERS, "Location": f"{base_of(request)}/{place}"}
    cookies = [cookie] if cookie is not None else []
    return Response(b"", status_code=303, media_type=HTML, headers=headers, cookies=cookies)


def redirect_to_login(request: PlaygroundRequest, error: NotLoggedIn) -> Response[bytes]:  # noqa: ARG001 - what handlers are given
    """Redirect a browser to the login."""
    return redirect(request, "login")


def refusal_page(request: PlaygroundRequest, refusal: PlaygroundRefusal) -> Response[bytes]:
    """Render a page with an error."""
    message = refusal.detail[:1].upper() + refusal.detail[1:]
    heading = HTTPStatus(refusal.status).phrase.capitalize()
    return page(request, "error.html", status=refusal.status, heading=heading, message=message)


def http_error_page(request: PlaygroundRequest, error: HttpRefusal) -> Response[bytes]:
    """Render a page for what the web layer refuses."""
    return refusal_page(
        request, PlaygroundRefusal(error.status, ERROR_MESSAGES.get(error.status, "Something went wrong."))
    )


def unavailable_page(request: PlaygroundRequest, error: Unreachable) -> Response[bytes]:  # noqa: ARG001 - it names a path of ours
    """Render a page for a playground that cannot be read."""
    return refusal_page(request, PlaygroundRefusal(503, "The portal is busy. Try again in a moment."))


def quota_page(request: PlaygroundRequest, error: PlaygroundFull) -> Response[bytes]:  # noqa: ARG001 - what handlers are given
    """Render a page for a full playground."""
    return refusal_page(request, PlaygroundRefusal(507, "The playground is full. Nothing was changed."))


def _day(value: object) -> str:
    found = _parse_moment(value)
    return str(value or "") if found is None else f"{found.day} {found:%B %Y}"


def _moment(value: object) -> str:
    found = _parse_moment(value)
    return str(value or "") if found is None else f"{found.day} {found:%B %Y, %H:%M}"


def _parse_moment(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value or ""))
    except ValueError:
        return None


def _money(value: object) -> str:
    found = numeral(value)
    return str(value or "") if found is None else f"${found:,.2f}"


def _size(value: object) -> str:
    found = numeral(value)
    if found is None:
        return ""
    return f"{found} bytes" if found < 1024 else f"{found / 1024:,.0f} kB"


def quote_segment(value: object) -> str:
    """Encode a value as one part of an address."""
    return quote(str(value or "").encode("utf-8", "replace"), safe="")
