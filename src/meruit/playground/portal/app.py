"""A payer's portal for prior authorisations: pages for a clerk with a browser, and rows behind them.

It works without JavaScript, and loads nothing but its own stylesheet. An agent sees the rows on the pages only.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from starlette.types import ASGIApp

from meruit.errors import HttpRefusal, NotLoggedIn, PlaygroundFull, PlaygroundRefusal, PriorAuthNotAllowed, Unreachable
from meruit.playground.http import Find, PlaygroundRequest, playground_of, serve
from meruit.playground.portal import payer
from meruit.playground.portal.forms import (
    MAX_FIELD,
    UPLOAD_HINT,
    URGENCIES,
    Errors,
    Form,
    read_form,
    read_prior_auth,
    too_long,
)
from meruit.playground.portal.pages import (
    USER,
    PortalSession,
    asset,
    check_form_token,
    cookie,
    http_error_page,
    new_session,
    page,
    quota_page,
    quote_segment,
    redirect,
    redirect_to_login,
    refusal_page,
    require_login,
    session_of,
    templates,
    unavailable_page,
)
from meruit.playground.portal.payer import PriorAuthStatus, Row, text
from meruit.playground.state import PlaygroundState
from meruit.web.parameters import FromPath, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

MAX_BODY_BYTES = 24 * 1024 * 1024
PAGE = 25
"""Requests on one page."""
MAX_FOUND = 50
"""Members that a search shows."""

MAX_DIGITS = 9
"""Of the number of a page."""

Query = Annotated[str, QueryParameter(max_length=MAX_FIELD, required=False)]
PageQuery = Annotated[str, QueryParameter(name="page", max_length=MAX_FIELD, required=False)]


def app(find: Find) -> ASGIApp:
    """Build the application that serves `/{playground_id}/portal`; raises MeruitError if jinja2 is not installed."""
    templates()
    return serve(
        find,
        [
            *(_login, _logout, _create, _upload, _withdraw, _appeal),
            *(_style, _icon, _home, _show_login, _list_requests, _show_new, _show_request),
            *(_find_members, _show_member, _list_messages),
        ],
        max_body_bytes=MAX_BODY_BYTES,
        handlers={
            NotLoggedIn: redirect_to_login,
            PlaygroundRefusal: refusal_page,
            HttpRefusal: http_error_page,
            Unreachable: unavailable_page,
            PlaygroundFull: quota_page,
        },
    )


@get("/{playground_id:str}/portal/style.css", sync_to_thread=True)
def _style() -> Response[bytes]:
    return asset("style.css", "text/css")


@get("/{playground_id:str}/portal/icon.svg", sync_to_thread=True)
def _icon() -> Response[bytes]:
    return asset("icon.svg", "image/svg+xml")


@get("/{playground_id:str}/portal", sync_to_thread=True)
def _home(request: PlaygroundRequest) -> Response[bytes]:
    require_login(request, playground_of(request))
    return redirect(request, "requests")


@get("/{playground_id:str}/portal/login", sync_to_thread=True)
def _show_login(request: PlaygroundRequest) -> Response[bytes]:
    session = session_of(request, playground_of(request))
    return redirect(request, "requests") if session.known else page(request, "login.html", session=session)


@post("/{playground_id:str}/portal/login")
async def _login(request: PlaygroundRequest) -> Response[bytes]:
    state, form = playground_of(request), await read_form(request)
    return await asyncio.to_thread(_try_login, request, state, form)


def _try_login(request: PlaygroundRequest, state: PlaygroundState, form: Form) -> Response[bytes]:
    session = session_of(request, state)
    check_form_token(state, session, form.token)
    given = [form.typed.get(name, "") for name in ("username", "password")]
    right = [hmac.compare_digest(*map(str.encode, pair)) for pair in zip(given, _credentials(state), strict=True)]
    if not all(right):
        state.log_if_room("portal_login_failed")
        wrong = {"username": "The user name or the password is wrong."}
        return page(request, "login.html", session=session, status=401, errors=wrong, typed={"username": given[0]})
    state.log_if_room("portal_login", {"user": USER})
    entered = new_session(state, known=True)
    return redirect(request, "requests", cookie(request, state, entered))


def _credentials(state: PlaygroundState) -> tuple[str, str]:
    return USER, str(state.settings()["secret"])


@post("/{playground_id:str}/portal/logout")
async def _logout(request: PlaygroundRequest) -> Response[bytes]:
    state, form = playground_of(request), await read_form(request)

    def leave() -> Response[bytes]:
        check_form_token(state, require_login(request, state), form.token)
        state.log_if_room("portal_logout", {"user": USER})
        gone = new_session(state, known=False)
        return redirect(request, "login", cookie(request, state, gone))

    return await asyncio.to_thread(leave)


@get("/{playground_id:str}/portal/requests", sync_to_thread=True)
def _list_requests(request: PlaygroundRequest, status: Query = "", asked: PageQuery = "1") -> Response[bytes]:
    state = playground_of(request)
    session = require_login(request, state)
    every = payer.rows(state, payer.PRIOR_AUTH)[::-1]
    chosen = status if status in set(PriorAuthStatus) else ""
    shown = [one for one in every if not chosen or one.get("status") == chosen]
    pages = max(-(-len(shown) // PAGE), 1)
    number = min(max(int(asked) if asked.isdecimal() and len(asked) < MAX_DIGITS else 1, 1), pages)
    return page(
        request,
        "requests.html",
        session=session,
        here="requests",
        rows=shown[(number - 1) * PAGE : number * PAGE],
        names={text(one, "id"): text(one, "name") for one in payer.rows(state, payer.MEMBER)},
        counts=Counter(text(one, "status") for one in every),
        statuses=[one.value for one in PriorAuthStatus],
        chosen=chosen,
        page=number,
        pages=pages,
    )


@get("/{playground_id:str}/portal/requests/new", sync_to_thread=True)
def _show_new(request: PlaygroundRequest, member: Query = "") -> Response[bytes]:
    session = require_login(request, playground_of(request))
    return _new_page(request, session, {"member": member}, {})


def _new_page(
    request: PlaygroundRequest, session: PortalSession, typed: Mapping[str, str], errors: Errors, status: int = 200
) -> Response[bytes]:
    given = {"typed": typed, "errors": errors, "urgencies": URGENCIES, "upload_hint": UPLOAD_HINT}
    return page(request, "new.html", session=session, status=status, here="requests", **given)


@post("/{playground_id:str}/portal/requests/new")
async def _create(request: PlaygroundRequest) -> Response[bytes]:
    state, form = playground_of(request), await read_form(request, "attachments")

    def create() -> Response[bytes]:
        session = require_login(request, state)
        check_form_token(state, session, form.token)
        asked, errors = read_prior_auth(state, form)
        if errors:
            if form.documents:
                errors.setdefault("attachments", "Choose your attachments again: a browser does not keep them.")
            return _new_page(request, session, form.typed, errors, 422)
        return redirect(request, f"requests/{payer.submit(state, asked)['id']}?done=submitted")

    return await asyncio.to_thread(create)


@get("/{playground_id:str}/portal/requests/{key:str}", sync_to_thread=True)
def _show_request(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    state = playground_of(request)
    return _request_page(request, state, require_login(request, state), key)


def _request_page(
    request: PlaygroundRequest,
    state: PlaygroundState,
    session: PortalSession,
    key: str,
    errors: Errors | None = None,
    typed: Mapping[str, str] | None = None,
) -> Response[bytes]:
    found = payer.row(state, payer.PRIOR_AUTH, key)
    if found is None:
        raise PlaygroundRefusal(404, "This request does not exist.")
    status = found.get("status")
    return page(
        request,
        "request.html",
        session=session,
        status=422 if errors else 200,
        here="requests",
        row=found,
        member=payer.row(state, payer.MEMBER, text(found, "member")) or {},
        history=_list_of(found, "history"),
        attachments=_attachments(found),
        takes_documents=status in payer.TAKES_DOCUMENTS,
        can_appeal=status == PriorAuthStatus.DENIED,
        can_withdraw=status in payer.OPEN,
        upload_hint=UPLOAD_HINT,
        errors=errors or {},
        typed=typed or {},
    )


def _attachments(found: Row) -> list[Row]:
    """What came with a request; of some documents only the name is known."""
    known = {text(one, "name"): one for one in _list_of(found, "documents") if isinstance(one, dict)}
    return [known.get(str(name)) or {"name": str(name)} for name in _list_of(found, "attachments")]


def _list_of(found: Row, name: str) -> Sequence[Any]:
    value = found.get(name)
    return value if isinstance(value, list) else []


@post("/{playground_id:str}/portal/requests/{key:str}/documents")
async def _upload(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    state, form = playground_of(request), await read_form(request, "documents")

    def upload() -> Response[bytes]:
        session = require_login(request, state)
        check_form_token(state, session, form.token)
        if form.errors or not form.documents:
            errors = form.errors or {"documents": "Choose a document first."}
            return _request_page(request, state, session, key, errors)
        payer.add_documents(state, key, form.documents, by=USER)
        return redirect(request, f"requests/{quote_segment(key)}?done=uploaded")

    return await _run_action(upload)


@post("/{playground_id:str}/portal/requests/{key:str}/withdraw")
async def _withdraw(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    state, form = playground_of(request), await read_form(request)

    def withdraw() -> Response[bytes]:
        check_form_token(state, require_login(request, state), form.token)
        payer.withdraw(state, key, by=USER)
        return redirect(request, f"requests/{quote_segment(key)}?done=withdrawn")

    return await _run_action(withdraw)


@post("/{playground_id:str}/portal/requests/{key:str}/appeal")
async def _appeal(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    state, form = playground_of(request), await read_form(request)

    def appeal() -> Response[bytes]:
        session = require_login(request, state)
        check_form_token(state, session, form.token)
        reason = form.typed.get("reason", "")
        wrong = too_long(reason) if reason else "Say why the decision should be changed."
        if wrong:
            return _request_page(request, state, session, key, {"reason": wrong}, form.typed)
        payer.appeal(state, key, reason, by=USER)
        return redirect(request, f"requests/{quote_segment(key)}?done=appealed")

    return await _run_action(appeal)


async def _run_action(act: Callable[[], Response[bytes]]) -> Response[bytes]:
    try:
        return await asyncio.to_thread(act)
    except PriorAuthNotAllowed as refused:
        raise PlaygroundRefusal(409, str(refused)) from None


@get("/{playground_id:str}/portal/members", sync_to_thread=True)
def _find_members(request: PlaygroundRequest, q: Query = "") -> Response[bytes]:
    state = playground_of(request)
    session, found = require_login(request, state), payer.find_members(state, q)[:MAX_FOUND]
    return page(request, "members.html", session=session, here="members", rows=found, asked=q.strip())


@get("/{playground_id:str}/portal/members/{key:str}", sync_to_thread=True)
def _show_member(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    state = playground_of(request)
    session, found = require_login(request, state), payer.row(state, payer.MEMBER, key)
    if found is None:
        raise PlaygroundRefusal(404, "This member does not exist.")
    requests = [one for one in payer.rows(state, payer.PRIOR_AUTH) if text(one, "member") == key]
    claims = payer.claims_of(state, key)
    return page(request, "member.html", session=session, here="members", row=found, requests=requests, claims=claims)


@get("/{playground_id:str}/portal/messages", sync_to_thread=True)
def _list_messages(request: PlaygroundRequest) -> Response[bytes]:
    state = playground_of(request)
    session = require_login(request, state)
    newest = sorted(payer.rows(state, payer.MESSAGE), key=lambda one: text(one, "at"), reverse=True)
    return page(request, "messages.html", session=session, here="messages", rows=newest)
