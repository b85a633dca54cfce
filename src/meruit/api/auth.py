"""Authentication by API key, and the roles that each route allows."""

import re
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol

from meruit.api.db_threads import SharedReads
from meruit.api.rate_limit import Throttle
from meruit.api.server import is_loopback
from meruit.errors import ApiProblem
from meruit.model.access import DEFAULT_TENANT, Caller, Role
from meruit.store.access import keys, sessions
from meruit.store.lru import LruCache
from meruit.store.store import Store
from meruit.web.fair_threads import CALLER
from meruit.web.requests import Request
from meruit.web.routing import Guard, Route

PUBLIC = "public"
"""The name of the route option that makes a route public."""
KEY_CACHE_S = 2.0
"""How long a key is cached. A key that another process revoked works for this long."""
MAX_CACHED_KEYS = 10_000
_ANY_KEY = b"any"
"""The name of the question whether a key exists; those of keys are their hashes."""
KEYLESS = "this machine"
"""The actor while no key exists."""
_SCHEME = "bearer "
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="meruit"'}

ApiConnection = Request


class _Address(Protocol):
    @property
    def host(self) -> str: ...


class KnownConnection(Protocol):
    """What authentication reads of a connection: of the framework, or of a direct route."""

    # Any: ASGI scopes hold values of many types; both kinds of headers are read like a mapping of text.
    @property
    def headers(self) -> Any:
        """The headers, by their names in small letters."""
        ...

    @property
    def client(self) -> _Address | None:
        """The address that the request came from."""
        ...

    @property
    def scope(self) -> Any:
        """The ASGI scope."""
        ...


class Authenticator:
    """Finds the caller of a request by its key."""

    def __init__(self, store: Store, throttle: Throttle, timer: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._throttle = throttle
        self._timer = timer
        self._known = LruCache[bytes, tuple[Caller, float]](MAX_CACHED_KEYS)
        self._reads = SharedReads()
        """Many requests of one key come at once; when it has to be read again, all of them wait for one answer."""
        self._open_until = 0.0
        self._locked = False
        self.announce: Callable[[], None] = lambda: None
        """Called when keys or sessions changed, so that other workers forget them too."""

    def clear_cache(self) -> None:
        """Forget cached keys, because a key was created or revoked."""
        self.forget_keys()
        self.announce()

    def forget_keys(self) -> None:
        """Forget cached keys, because another worker changed some."""
        self._known.clear()
        # What is being read now may be what was before.
        self._reads = SharedReads()
        self._open_until = 0.0

    async def authenticate(self, connection: KnownConnection) -> Caller:
        """Identify the caller and count the request; raises ApiProblem 401 or 429."""
        found = await self.identify(connection)
        CALLER.set(found.key_id or KEYLESS)
        if found.key_id:
            self._throttle.admit(found.key_id, found.tenant)
        return found

    async def identify(self, connection: KnownConnection) -> Caller:
        """Identify the caller without counting a request; raises ApiProblem 401 or 429."""
        presented = connection.headers.get("authorization")
        if presented is None:
            return await self._identify_without_key(connection)
        if not presented.lower().startswith(_SCHEME):
            raise _auth_problem("the header Authorization must read `Bearer KEY`")
        return await self.identify_by_key(presented[len(_SCHEME) :].strip(), connection)

    async def identify_by_key(self, presented: str, connection: KnownConnection) -> Caller:
        """Identify the owner of a key; raises ApiProblem 401 or 429."""
        # The cache holds hashes, so that a memory dump reveals no key.
        name = sha256(presented.encode("utf-8", "replace")).digest()
        now = self._timer()
        known = self._known.get(name)
        if known is not None and known[1] > now:
            return known[0]
        # Always look the key up: wrong keys from the same address must not lock out a valid one.
        reads = self._reads
        found = await reads.ask(name, self._find_caller, presented)
        if found is None:
            self._known.remove(name)
            self._throttle.count_failure(_address(connection))
            raise _auth_problem("the key does not exist, was revoked or has expired; send a valid key")
        if reads is self._reads:
            self._known.put(name, (found, now + KEY_CACHE_S))
        return found

    async def identify_browser(self, connection: KnownConnection, token: str | None) -> Caller | None:
        """Identify a browser by its session, or as this machine's while no key exists; None where it must sign in."""
        if token is not None:
            found = await self._identify_by_session(token)
            if found is not None:
                CALLER.set(found.key_id)
                self._throttle.admit(found.key_id, found.tenant)
                return found
        if not await self._is_open():
            return None
        require_own_browser(connection)
        CALLER.set(KEYLESS)
        return Caller(DEFAULT_TENANT, Role.ADMIN, "")

    async def _identify_by_session(self, token: str) -> Caller | None:
        name = sha256(b"session:" + token.encode("utf-8", "replace")).digest()
        now = self._timer()
        known = self._known.get(name)
        if known is not None and known[1] > now:
            return known[0]
        reads = self._reads
        found = await reads.ask(name, self._find_by_session, token)
        if found is None:
            self._known.remove(name)
        elif reads is self._reads:
            self._known.put(name, (found, now + KEY_CACHE_S))
        return found

    def _find_by_session(self, token: str) -> Caller | None:
        with self._store.database.reading() as connection:
            return sessions.caller(connection, token, self._store.surroundings.clock(), self._store.trusted)

    def _find_caller(self, presented: str) -> Caller | None:
        with self._store.database.reading() as connection:
            return keys.caller(connection, presented, self._store.surroundings.clock(), self._store.trusted)

    async def _identify_without_key(self, connection: KnownConnection) -> Caller:
        """Serve requests from this machine while no key exists, except those of web pages and proxies."""
        if not await self._is_open():
            raise _auth_problem("a key is required; send it as `Authorization: Bearer KEY`")
        if not is_loopback(_address(connection)):
            raise _auth_problem("only requests from this machine need no key; create one with `meruit keys create`")
        if _is_from_elsewhere(connection):
            raise _auth_problem("web pages and proxies need a key; create one with `meruit keys create`")
        return Caller(DEFAULT_TENANT, Role.ADMIN, "")

    async def _is_open(self) -> bool:
        if self._locked:
            return False
        now = self._timer()
        if now >= self._open_until:
            reads = self._reads
            # An answer that was overtaken must not take back that there are keys.
            self._locked = await reads.ask(_ANY_KEY, self._has_keys) or self._locked
            if reads is self._reads:
                self._open_until = now + KEY_CACHE_S
        return not self._locked

    def _has_keys(self) -> bool:
        return keys.are_required(self._store)


HOST = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_FORWARDING_HEADERS = frozenset({"origin", "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"})
"""Headers that browsers add for web pages, and proxies for their clients."""


def _is_from_elsewhere(connection: KnownConnection) -> bool:
    """Whether a request from this machine was sent for another client, by a web page or a proxy."""
    if not _names_this_machine(connection):
        return True
    if connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    return not _FORWARDING_HEADERS.isdisjoint(connection.headers.keys())


def _names_this_machine(connection: KnownConnection) -> bool:
    hosts = [value for name, value in connection.scope["headers"] if name == b"host"]
    named = HOST.fullmatch(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
    return named is not None and is_loopback(named[1])


def require_own_browser(connection: KnownConnection) -> None:
    """Refuse a page without a key to all but a browser on this machine; raises ApiProblem 401.

    The host must be this machine's name, or another site could have its own name resolve to it. Another site may link
    to a page, but may not ask for one in the background.
    """
    headers = connection.headers
    forwarded = _FORWARDING_HEADERS - {"origin"}
    if not is_loopback(_address(connection)) or not forwarded.isdisjoint(headers.keys()):
        raise _auth_problem("only a browser on this machine needs no key; create one with `meruit keys create`")
    if not _names_this_machine(connection):
        raise _auth_problem("open this page as http://127.0.0.1 with the port of the service")
    if not is_same_site(connection):
        raise _auth_problem("another site asked for this page; open it from the address bar")


def is_same_site(connection: KnownConnection) -> bool:
    """Whether a browser asks for its user or for a page of ours, not for a page of another site."""
    headers = connection.headers
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return False
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    follows_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return follows_link and connection.scope.get("method") in ("GET", "HEAD")


def _address(connection: KnownConnection) -> str:
    return connection.client.host if connection.client is not None else ""


def _auth_problem(detail: str) -> ApiProblem:
    return ApiProblem(401, "unauthorized", detail, headers=_CHALLENGE)


def build_authentication(authenticator: Authenticator) -> Guard:
    """Build the guard that authenticates requests of every route that is not public."""

    async def authenticate(connection: ApiConnection, route: Route) -> None:
        if not route.opt.get(PUBLIC):
            connection.scope["user"] = connection.scope["state"]["caller"] = await authenticator.authenticate(
                connection
            )

    return authenticate


def allow(*roles: Role) -> Guard:
    """Build a guard that allows only these roles."""
    check = allow_only(*roles)

    async def guard(connection: ApiConnection, _route: Route) -> None:
        check(connection.user)

    return guard


def allow_only(*roles: Role) -> Callable[[Caller], None]:
    """Build a check that raises ApiProblem 403 for a caller with another role."""
    allowed = frozenset(roles)

    def check(caller: Caller) -> None:
        if caller.role not in allowed:
            named = ", ".join(sorted(allowed))
            raise ApiProblem(
                403,
                "forbidden",
                f"a key with the role {caller.role} may not do this; use a key with one of the roles {named}",
            )

    return check


ANYONE = allow(*Role)
READERS = allow(Role.OPERATOR, Role.AUDITOR, Role.ADMIN)
OPERATORS = allow(Role.OPERATOR, Role.ADMIN)
ADMINS = allow(Role.ADMIN)
