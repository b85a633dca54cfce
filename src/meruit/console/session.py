"""Who a browser is: a session that began with a key, this machine while no key exists, or a visitor who only reads."""

from urllib.parse import quote

from meruit.api.auth import PUBLIC, ApiConnection, Authenticator, is_same_site, require_own_browser
from meruit.api.query_params import ANY_PARAMETERS
from meruit.console.page import ANYONE, HTML, SECURITY_HEADERS, SESSION_COOKIE, Console, PageRequest, action, read_field
from meruit.errors import ApiProblem, SignInNeeded
from meruit.model.access import Caller
from meruit.store.access.sessions import LASTS, EndSession, NewSession
from meruit.web.responses import Cookie, Response
from meruit.web.routing import Route, get, post

SIGN_IN = "/sign-in"
OPEN_TO_ALL = "open_to_all"
"""The name of the route option of what a browser may see before it signed in."""
MAX_KEY = 200


async def find_caller(connection: ApiConnection) -> Caller | None:
    """Who asks; None for a browser that must sign in. Raises ApiProblem."""
    console: Console = connection.app.state["console"]
    if console.visitor is not None:
        require_own_browser(connection)
        return console.visitor
    authenticator: Authenticator = connection.app.state["service"].authenticator
    return await authenticator.identify_browser(connection, connection.cookies.get(SESSION_COOKIE))


async def require_session(request: PageRequest, route: Route) -> None:
    """Find the caller of a page; raises ApiProblem, and SignInNeeded for a browser that is not signed in."""
    if route.opt.get(OPEN_TO_ALL):
        return
    caller = await find_caller(request)
    if caller is None:
        raise SignInNeeded
    request.scope["user"] = request.scope["state"]["caller"] = caller


def lead_to_sign_in(request: PageRequest, _needed: SignInNeeded) -> Response[bytes]:
    """Lead a browser to where it can sign in."""
    scope, headers = request.scope, request.headers
    path = quote(scope["path"]) + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
    target = f"{SIGN_IN}?next={quote(path, safe='')}"
    status, sent = 303, {**SECURITY_HEADERS, "Location": target}
    if "hx-request" in headers:
        status, sent = 200, {**SECURITY_HEADERS, "HX-Redirect": target}
    elif headers.get("accept", "").startswith("text/event-stream"):
        status, sent = 401, dict(SECURITY_HEADERS)
    return Response(b"", status_code=status, headers=sent, media_type=HTML)


def safe_path(text: str) -> str:
    """The path to go to after signing in; only one of this service."""
    inside = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if inside and not text.startswith(SIGN_IN) else "/"


_OPTIONS = {PUBLIC: True, ANY_PARAMETERS: True, OPEN_TO_ALL: True}


@get(SIGN_IN, opt=_OPTIONS, include_in_schema=False)
async def show_sign_in(request: PageRequest) -> Response[bytes]:
    """Ask for a key."""
    return request.show("sign-in.html", to=safe_path(request.query_params.get("next", "/")), problem="")


@post(SIGN_IN, status_code=200, opt=_OPTIONS, include_in_schema=False)
async def sign_in(request: PageRequest) -> Response[bytes]:
    """Exchange a key for a session."""
    if not is_same_site(request):
        raise ApiProblem(403, "other_site", "another site sent this form; nothing was done")
    service = request.service
    to = safe_path(await read_field(request, "next") or "/")
    try:
        caller = await service.authenticator.identify_by_key(await read_field(request, "key", MAX_KEY), request)
    except ApiProblem as refused:
        return request.show("sign-in.html", status=refused.status, to=to, problem=refused.detail)
    session = await service.store.recorder.record(NewSession(caller, service.store.surroundings.entropy))
    return _with_cookie(request, request.go_to(to), session.token, int(LASTS.total_seconds()))


@action("/sign-out", roles=ANYONE)
async def sign_out(request: PageRequest) -> Response[bytes]:
    """End the session, here and for every copy of its cookie."""
    token = request.cookies.get(SESSION_COOKIE)
    if token is not None:
        await request.service.store.recorder.record(EndSession(token))
        request.service.authenticator.clear_cache()
    return _with_cookie(request, request.go_to(SIGN_IN), "", 0)


def _with_cookie(request: PageRequest, response: Response[bytes], token: str, seconds: int) -> Response[bytes]:
    secure = request.scope["scheme"] == "https"
    response.cookies.append(
        Cookie(key=SESSION_COOKIE, value=token, path="/", max_age=seconds, httponly=True, samesite="lax", secure=secure)
    )
    return response
