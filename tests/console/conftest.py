"""A service with its console, and browsers that are signed in to it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from tests.api.conftest import HERE, Deployment, _discard_playgrounds, deploy, engine

from meruit.console.app import build_pages
from meruit.console.page import SESSION_COOKIE
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine

__all__ = ["_discard_playgrounds", "deploy", "engine"]


class Reader(NamedTuple):
    """A browser without a screen: it has a session, and asks for pages."""

    deployment: Deployment
    cookie: str

    # Any: options of httpx.
    def get(self, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        """A page."""
        return self.deployment.ask("GET", path, headers={"cookie": self.cookie, **(headers or {})}, **more)

    def post(self, path: str, *, csrf: str | None = None, **fields: str) -> httpx.Response:
        """Send a form, with the token of the page's own form."""
        token = self.token() if csrf is None else csrf
        headers = {"cookie": self.cookie, "sec-fetch-site": "same-origin"}
        return self.deployment.ask("POST", path, headers=headers, data={"csrf": token, **fields})

    def token(self) -> str:
        """A token as a form of this session holds it."""
        session = self.cookie.partition("=")[2]
        return str(self.deployment.app._app.service.state["console"].tokens.issue(session or None))


def sign_in(deployment: Deployment, key: str, to: str = "/") -> httpx.Response:
    """Exchange a key for a session."""
    return deployment.ask("POST", "/sign-in", data={"key": key, "next": to}, client=HERE)


def cookie_of(reply: httpx.Response) -> str:
    """The session's cookie as a browser sends it back."""
    return f"{SESSION_COOKIE}={reply.cookies[SESSION_COOKIE]}"


SignIn = Callable[..., Reader]


@pytest.fixture(scope="module")
def console(engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A service with keys and a console, shared by the tests of a file."""
    made = Deployment(Location(tmp_path_factory.mktemp("console") / "data"), engine, pages=build_pages)
    made.key(tenant="first-tenant")
    # On a busy machine a page would say that it is computing; tests of that set it themselves.
    made.app._app.service.state["console"].figures.patience_s = 60.0
    yield made
    made.close()


@pytest.fixture
def reader(console: Deployment) -> SignIn:
    """Signs in a new key of a role and tenant."""

    def with_role(role: Role = Role.ADMIN, tenant: str = DEFAULT_TENANT, **more: Any) -> Reader:
        return Reader(console, cookie_of(sign_in(console, console.key(role, tenant, **more))))

    return with_role
