"""Routes: a function with a path, and the table that finds the route of a request."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPMethod
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import msgspec

from meruit.errors import HttpRefusal, NoSuchPath
from meruit.web.parameters import REQUEST, Argument, Handler, list_arguments

PATH_TYPE = "path"
"""The type of a parameter that takes the rest of the path, with its slashes."""
_PARAMETER = re.compile(r"\{(?P<name>\w+):(?P<type>str|int|path)\}")
_SLASHES = re.compile("//+")
_STATUS = {HTTPMethod.POST: 201, HTTPMethod.DELETE: 204}

T = TypeVar("T")


class ResponseSpec(msgspec.Struct, frozen=True):
    """What OpenAPI says of a reply that the signature of the handler does not."""

    # Any: a type, or a union of types.
    data_container: Any
    description: str
    media_type: str = "application/json"


@dataclass(frozen=True, eq=False, kw_only=True)
class Route:
    """A function that answers requests, and what is known of it."""

    fn: Handler
    method: HTTPMethod
    paths: tuple[str, ...]
    status_code: int
    # Any: guards see routes, and each application has options of its own.
    guards: Sequence["Guard"] = ()
    """Called before it in their order; each may raise an error."""
    summary: str | None = None
    """One line for OpenAPI; the docstring of the function is the description."""
    tags: Sequence[str] = ()
    opt: Mapping[str, Any] = field(default_factory=dict)
    """Options that guards and applications read."""
    media_type: str | None = None
    responses: Mapping[int, ResponseSpec] = field(default_factory=dict)
    include_in_schema: bool = True
    sync_to_thread: bool = False
    """Whether the function blocks, and is called in a thread."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.fn.__name__

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """What the function takes, but for the request."""
        return tuple(list_arguments(self.fn))

    @cached_property
    def query_names(self) -> frozenset[str]:
        """The parameters of the query that it takes."""
        return frozenset(one.wire_name for one in self.arguments if one.place == "query")

    @property
    def takes_request(self) -> bool:
        """Whether the function takes the request itself."""
        return REQUEST in inspect.signature(self.fn).parameters


Guard = Callable[[Any, Route], Awaitable[None]]
"""Raises an error for a request that the route does not take."""


class RouteOptions(TypedDict, total=False):
    """What a decorator takes beside the path; each is described at `Route`."""

    status_code: int
    guards: Sequence[Guard]
    summary: str
    tags: Sequence[str]
    opt: Mapping[str, Any]
    media_type: str
    responses: Mapping[int, ResponseSpec]
    include_in_schema: bool
    sync_to_thread: bool


Paths = str | Sequence[str]
MakeRoute = Callable[[Handler], Route]


def get(path: Paths, **options: Unpack[RouteOptions]) -> MakeRoute:
    """Answer GET with a function."""
    return _make(HTTPMethod.GET, path, options)


def post(path: Paths, **options: Unpack[RouteOptions]) -> MakeRoute:
    """Answer POST with a function, by default with the status 201."""
    return _make(HTTPMethod.POST, path, options)


def put(path: Paths, **options: Unpack[RouteOptions]) -> MakeRoute:
    """Answer PUT with a function."""
    return _make(HTTPMethod.PUT, path, options)


def patch(path: Paths, **options: Unpack[RouteOptions]) -> MakeRoute:
    """Answer PATCH with a function."""
    return _make(HTTPMethod.PATCH, path, options)


def delete(path: Paths, **options: Unpack[RouteOptions]) -> MakeRoute:
    """Answer DELETE with a function, by default with the status 204."""
    return _make(HTTPMethod.DELETE, path, options)


def _make(method: HTTPMethod, path: Paths, options: RouteOptions) -> MakeRoute:
    paths = (path,) if isinstance(path, str) else tuple(path)
    chosen: RouteOptions = {"status_code": _STATUS.get(method, 200), **options}

    def make(fn: Handler) -> Route:
        return Route(fn=fn, method=method, paths=paths, **chosen)

    return make


def normalize_path(path: str) -> str:
    """A path with one slash at its start and between its parts, and none at its end."""
    return _SLASHES.sub("/", f"/{path.strip('/')}")


def documented_path(path: str) -> str:
    """A path as OpenAPI and metrics write it: `/v1/work/{work_id}`."""
    return _PARAMETER.sub(r"{\g<name>}", path)


def path_parameters(path: str) -> dict[str, str]:
    """The type of each parameter of a path."""
    return {found["name"]: found["type"] for found in _PARAMETER.finditer(path)}


@dataclass(eq=False, slots=True)
class _Node(Generic[T]):
    """A place in the tree of paths."""

    children: "dict[str, _Node[T]]" = field(default_factory=dict)
    any_child: "_Node[T] | None" = None
    takes_rest: bool = False
    found: dict[str, tuple[T, tuple[tuple[str, str], ...]]] = field(default_factory=dict)
    """By method: what is served there, and the names and types of its parameters."""


class RouteTable(Generic[T]):
    """Finds what serves a path and a method. A path without parameters comes before one with them."""

    def __init__(self) -> None:
        self._plain: dict[str, _Node[T]] = {}
        self._root: _Node[T] = _Node()

    def add(self, path: str, method: str, served: T) -> None:
        """Serve a path; raises ValueError where it is served already."""
        node = self._grow(normalize_path(path))
        if method in node.found:
            raise ValueError(f"two routes serve {method} {path}")
        node.found[method] = (served, tuple(path_parameters(path).items()))

    def methods(self, path: str) -> list[str]:
        """The methods that a path is served for."""
        return list(self._grow(normalize_path(path)).found)

    def find(self, path: str, method: str) -> tuple[T, dict[str, Any]]:
        """What serves a path, and the values of its parameters; raises NoSuchPath and HttpRefusal 405."""
        node, values = self._plain.get(path), list[str]()
        if node is None:
            node = self._descend(path, values)
        entry = node.found.get(method)
        if entry is None:
            raise HttpRefusal(405, headers={"Allow": ", ".join(sorted(node.found))})
        served, names = entry
        return served, {name: _parse(kind, value) for (name, kind), value in zip(names, values, strict=True)}

    def _grow(self, path: str) -> _Node[T]:
        if not _PARAMETER.search(path):
            return self._plain.setdefault(path, _Node())
        node = self._root
        for part in path.split("/")[1:]:
            found = _PARAMETER.fullmatch(part)
            if found is None:
                node = node.children.setdefault(part, _Node())
                continue
            if node.any_child is None:
                node.any_child = _Node()
            node = node.any_child
            node.takes_rest = node.takes_rest or found["type"] == PATH_TYPE
        return node

    def _descend(self, path: str, values: list[str]) -> _Node[T]:
        node = self._root
        parts = path.split("/")[1:]
        for number, part in enumerate(parts):
            child = node.children.get(part)
            if child is None:
                child = node.any_child
                if child is None:
                    raise NoSuchPath
                values.append(f"/{'/'.join(parts[number:])}" if child.takes_rest else part)
            node = child
            if node.takes_rest:
                break
        if not node.found:
            raise NoSuchPath
        return node


# Any: a number or a text.
def _parse(kind: str, value: str) -> Any:
    if kind != "int":
        return value
    try:
        return int(value)
    except ValueError:
        raise NoSuchPath from None
