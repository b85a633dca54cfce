"""Arguments of handlers: read from their place, checked, and wrong ones named without their values."""

import asyncio
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import BodyError, HttpRefusal
from meruit.web.parameters import (
    FromPath,
    FromQuery,
    HeaderParameter,
    JSONBody,
    QueryParameter,
    compile_arguments,
    list_arguments,
)
from meruit.web.requests import Request

SECRET = "canary-1234"


class Shade(StrEnum):
    DARK = "dark"
    LIGHT = "light"


async def handler(
    request: Request,
    name: FromPath[str],
    size: Annotated[int, QueryParameter(ge=1, le=9)] = 5,
    shade: FromQuery[Shade | None] = None,
    tags: Annotated[list[str] | None, QueryParameter(name="tag", max_items=2, required=False)] = None,
    ident: Annotated[str | None, HeaderParameter(name="X-Ident", pattern="^[a-z]+$", required=False)] = None,
) -> None: ...


READ = compile_arguments(list_arguments(handler), takes_request=True)


def read(query: str = "", path: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    scope = {
        "type": "http",
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "path_params": {"name": "n"} if path is None else path,
    }
    values = asyncio.run(READ(Request(scope)))
    assert isinstance(values.pop("request"), Request)
    return values


def refused(**what: Any) -> list[tuple[str, str]]:
    with pytest.raises(HttpRefusal) as problem:
        read(**what)
    assert problem.value.status == 400
    assert SECRET not in str(problem.value.problems)
    return [(one.where, one.message) for one in problem.value.problems]


def test_what_is_left_out_has_its_default() -> None:
    assert read() == {"name": "n", "size": 5, "shade": None, "tags": None, "ident": None}


def test_values_are_read_from_their_place() -> None:
    found = read("size=7&shade=dark&tag=a&tag=b&size=8", x_ident="abc")
    assert found == {"name": "n", "size": 8, "shade": Shade.DARK, "tags": ["a", "b"], "ident": "abc"}


@pytest.mark.parametrize(
    ("what", "where", "message"),
    [
        ({"query": f"size={SECRET}"}, "size", "Expected `int`, got `str`"),
        ({"query": "size=10"}, "size", "Expected `int` <= 9"),
        ({"query": f"shade={SECRET}"}, "shade", "must be one of dark, light"),
        ({"query": "tag=a&tag=b&tag=c"}, "tag", "Expected `array` of length <= 2"),
        ({"x_ident": SECRET}, "X-Ident", "Expected `str` matching regex '^[a-z]+$'"),
        ({"path": {}}, "name", "is required"),
    ],
)
def test_a_wrong_value_is_named_as_its_sender_names_it(what: dict[str, Any], where: str, message: str) -> None:
    assert refused(**what) == [(where, message)]


def test_all_that_is_wrong_is_named_at_once() -> None:
    assert [where for where, _ in refused(query="size=0&shade=x", path={})] == ["name", "size", "shade"]


@given(st.integers())
def test_a_number_is_within_its_limits_or_refused(size: int) -> None:
    if 1 <= size <= 9:
        assert read(f"size={size}")["size"] == size
    else:
        assert [where for where, _ in refused(query=f"size={size}")] == ["size"]


def test_an_argument_says_where_it_comes_from() -> None:
    async def unclear(name: str) -> None: ...

    with pytest.raises(TypeError, match="name"):
        list_arguments(unclear)


def read_body(body: bytes) -> Any:
    async def with_body(data: JSONBody[dict[str, int]]) -> None: ...

    reader = compile_arguments(list_arguments(with_body), takes_request=False)

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    return asyncio.run(reader(Request({"type": "http", "headers": [], "query_string": b""}, receive)))


def test_a_body_is_of_the_declared_type() -> None:
    assert read_body(b'{"a": 1}') == {"data": {"a": 1}}
    with pytest.raises(HttpRefusal) as missing:
        read_body(b"")
    assert [str(one) for one in missing.value.problems] == ["body: is required"]
    with pytest.raises(BodyError) as wrong:
        read_body(b'{"a": "canary-1234"}')
    assert (wrong.value.reason, SECRET in str(wrong.value)) == ("invalid", False)
    for body in (b"{", b'{"\xff": 1}'):
        with pytest.raises(BodyError) as broken:
            read_body(body)
        assert broken.value.reason == "not_json"
