"""Gather the pages and add them to a service."""

import pkgutil
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from meruit.api.app import PageRoutes
from meruit.api.processes.siblings import MessageTopic
from meruit.console import pages, session
from meruit.console.background import BackgroundFigures
from meruit.console.page import PAGE, Console, NavEntry, PageInfo, PageRequest, Toasts
from meruit.console.problems import no_route_handlers, page_handlers
from meruit.console.shape import add_to
from meruit.console.static_files import read_static, static_path
from meruit.console.stream import follow_changes
from meruit.console.tokens import FormTokens
from meruit.errors import SignInNeeded
from meruit.model.access import Caller
from meruit.pages.templating import build_environment
from meruit.store.store import Store
from meruit.web.app import RouteGroup
from meruit.web.routing import Route

if TYPE_CHECKING:
    from meruit.api.processes.inheritance import WorkerProcess

MAX_FORM_BYTES = 32 * 1024 * 1024
"""The largest form; a bundle to check may be large."""
SECTIONS = ("Home", "Quality", "Agents", "Money", "Proof", "Service")
"""The parts of the menu, in their order."""


def build_pages(store: Store, visitor: Caller | None = None, process: "WorkerProcess | None" = None) -> PageRoutes:
    """The console of a service; with a `visitor`, everyone on this machine is that caller and none signs in.

    One of several workers has a `process`.
    """
    handlers = find_handlers()
    infos = tuple(info for one in handlers if (info := one.opt.get(PAGE)) is not None)
    environment = build_environment("meruit.console")
    add_to(environment)
    environment.globals.update(
        static=static_path,
        menu=lambda request: build_menu(infos, request.caller, request.service.settings.operator_tenant),
    )

    # Any: a template takes any values.
    def render(template: str, values: Mapping[str, Any]) -> str:
        return environment.get_template(template).render(values)

    tokens = FormTokens(store.surroundings.entropy, None if process is None else process.limits.secret)
    console = Console(
        render=render,
        tokens=tokens,
        pages=infos,
        visitor=visitor,
        toasts=_share_toasts(process),
        figures=BackgroundFigures(),
        answers=BackgroundFigures(),
    )
    group = RouteGroup(
        routes=[
            *handlers,
            session.show_sign_in,
            session.sign_in,
            session.sign_out,
            read_static,
            follow_changes,
        ],
        request_class=PageRequest,
        guards=(session.require_session,),
        exception_handlers={**page_handlers, SignInNeeded: session.lead_to_sign_in},
        max_body_bytes=MAX_FORM_BYTES,
    )
    return PageRoutes(group=group, state={"console": console}, exception_handlers=no_route_handlers)


def _share_toasts(process: "WorkerProcess | None") -> Toasts:
    if process is None:
        return Toasts()
    toasts = Toasts(partial(process.siblings.send, MessageTopic.TOAST))
    process.siblings.on(MessageTopic.TOAST, toasts.receive)
    return toasts


def find_handlers() -> list[Route]:
    """Every page and action of the files in pages/."""
    found: list[Route] = []
    for module in sorted(pkgutil.iter_modules(pages.__path__), key=lambda one: one.name):
        loaded = import_module(f"{pages.__name__}.{module.name}")
        made = [one for one in vars(loaded).values() if isinstance(one, Route)]
        # A page that another file imports is one page.
        found += [one for one in made if one not in found]
    return found


def build_menu(
    infos: tuple[PageInfo, ...], caller: Caller, operators: str
) -> list[tuple[str, list[tuple[NavEntry, str]]]]:
    """The menu of a caller: sections, each with its lines and their paths; `operators` is the operator's tenant."""
    seen = [
        (info.nav, info.path)
        for info in infos
        if info.nav is not None and caller.role in info.roles and (caller.tenant == operators or not info.deployment)
    ]
    return [
        (section, sorted(lines, key=lambda one: (one[0].order, one[0].word)))
        for section in SECTIONS
        if (lines := [one for one in seen if one[0].section == section])
    ]
