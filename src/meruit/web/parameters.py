"""Typed arguments of handlers: where each comes from, its constraints, and what is wrong with a value."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from meruit.errors import HttpRefusal, Problem
from meruit.model.decoding import convert_to
from meruit.web.requests import Request
from meruit.web.validation import safe_message

REQUEST = "request"
BODY = "body"
IS_REQUIRED = "is required"
_CONSTRAINTS = ("ge", "le", "pattern", "min_length", "max_length")

T = TypeVar("T")


# Compared by identity: an annotation must be hashable, and a schema is not.
@dataclass(frozen=True, kw_only=True, eq=False)
class Parameter:
    """What an argument takes from a request."""

    place: ClassVar[str]
    name: str | None = None
    """The name in requests, where the function has another one."""
    required: bool = True
    """False where a request may leave it out: the argument is then its default, or None."""
    description: str | None = None
    ge: int | None = None
    le: int | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    # Any: JSON schema.
    schema_extra: Mapping[str, Any] | None = None
    """Further keys of its schema in OpenAPI."""


class PathParameter(Parameter):
    """A part of the path."""

    place = "path"


class QueryParameter(Parameter):
    """A parameter of the query; one that is a list takes all its values, any other the last one."""

    place = "query"


class HeaderParameter(Parameter):
    """A header."""

    place = "header"


class JsonContent(Parameter):
    """The body, as JSON."""

    place = BODY


FromPath = Annotated[T, PathParameter()]
FromQuery = Annotated[T, QueryParameter()]
JSONBody = Annotated[T, JsonContent()]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a handler."""

    name: str
    place: str
    wire_name: str
    """The name in requests."""
    # Any: a type, with its constraints; and a value of it.
    kind: Any
    parameter: Parameter
    is_list: bool
    choices: tuple[str, ...]
    """The values, where there is a fixed choice of them."""
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether a request must have it."""
        return self.parameter.required and self.default is inspect.Parameter.empty

    @property
    def default_value(self) -> Any:
        """The value where a request leaves it out."""
        return None if self.default is inspect.Parameter.empty else self.default

    def read(self, request: Request) -> str | list[str] | None:
        """What the request has for it; None for nothing."""
        match self.place:
            case "query" if self.is_list:
                return request.query_params.getlist(self.wire_name) or None
            case "query":
                return request.query_params.get(self.wire_name)
            case "header":
                return request.headers.get(self.wire_name)
            case _:
                found: str | None = request.scope["path_params"].get(self.wire_name)
                return found

    def explain(self, refused: msgspec.ValidationError) -> Problem:
        """What is wrong with a value."""
        if self.choices:
            return Problem(self.wire_name, f"must be one of {', '.join(self.choices)}")
        return Problem(self.wire_name, safe_message(str(refused)))


# Any, here and below: handlers take and return values of any type.
Handler = Callable[..., Any]
Arguments = Callable[[Request], Coroutine[Any, Any, dict[str, Any]]]


def list_arguments(handler: Handler) -> list[Argument]:
    """The arguments of a handler, but for its request; raises TypeError for one that says not where it comes from."""
    hints = get_type_hints(handler, include_extras=True)
    return [
        _read_argument(handler, name, hints[name], one.default)
        for name, one in inspect.signature(handler).parameters.items()
        if name != REQUEST
    ]


def _read_argument(handler: Handler, name: str, annotation: Any, default: Any) -> Argument:
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    parameter = next((mark for mark in marks if isinstance(mark, Parameter)), None)
    if parameter is None:
        raise TypeError(f"{handler.__qualname__}: say where the argument {name} comes from, as FromPath or FromQuery")
    members = [one for one in list_members(kind) if one is not NoneType]
    return Argument(
        name=name,
        place=parameter.place,
        wire_name=parameter.name or name,
        kind=_constrain(kind, parameter),
        parameter=parameter,
        is_list=any(get_origin(one) is list for one in members),
        choices=tuple(
            str(value.value) for one in members if isinstance(one, type) and issubclass(one, Enum) for value in one
        ),
        default=default,
    )


def list_members(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the only type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _constrain(kind: Any, parameter: Parameter) -> Any:
    """A type that msgspec checks the constraints of; those of an optional value are those of its type."""
    limits = {name: value for name in _CONSTRAINTS if (value := getattr(parameter, name)) is not None}
    counts = {"min_length": parameter.min_items, "max_length": parameter.max_items}
    limits |= {name: value for name, value in counts.items() if value is not None}
    if not limits:
        return kind
    meta = msgspec.Meta(**limits)
    members = tuple(one if one is NoneType else Annotated[one, meta] for one in list_members(kind))
    return Union[members]  # noqa: UP007 - made of a tuple


def compile_arguments(arguments: list[Argument], *, takes_request: bool) -> Arguments:
    """Build the function that reads the arguments of a handler; it raises BodyError and HttpRefusal."""
    body = next((one for one in arguments if one.place == BODY), None)
    others = tuple(one for one in arguments if one.place != BODY)

    async def read(request: Request) -> dict[str, Any]:
        values: dict[str, Any] = {REQUEST: request} if takes_request else {}
        problems: list[Problem] = []
        if body is not None:
            if await request.body():
                values[body.name] = await request.read_json(body.kind)
            else:
                problems.append(Problem(BODY, IS_REQUIRED))
        for one in others:
            sent = one.read(request)
            if sent is None:
                values[one.name] = one.default_value
                if one.is_required:
                    problems.append(Problem(one.wire_name, IS_REQUIRED))
                continue
            try:
                values[one.name] = convert_to(sent, one.kind, strict=False)
            except msgspec.ValidationError as refused:
                problems.append(one.explain(refused))
        if problems:
            raise HttpRefusal(400, problems=problems)
        return values

    return read
