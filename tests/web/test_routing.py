"""Which route answers a path, and what a path without one is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import HttpRefusal, NoSuchPath
from meruit.web.parameters import FromPath
from meruit.web.routing import RouteTable, delete, documented_path, get, normalize_path, patch, post, put

PATHS = ("/", "/a", "/a/b", "/a/{x:str}", "/a/{x:str}/c", "/n/{x:int}", "/r/{rest:path}", "/a/{x:str}/d/{y:int}")


@pytest.fixture(scope="module")
def table() -> RouteTable[str]:
    made: RouteTable[str] = RouteTable()
    for path in PATHS:
        made.add(path, "GET", path)
    made.add("/a/{x:str}", "DELETE", "delete")
    return made


@pytest.mark.parametrize(
    ("path", "served", "values"),
    [
        ("/", "/", {}),
        ("/a", "/a", {}),
        # A path without parameters comes first.
        ("/a/b", "/a/b", {}),
        ("/a/z", "/a/{x:str}", {"x": "z"}),
        ("/a/b/c", "/a/{x:str}/c", {"x": "b"}),
        ("/n/12", "/n/{x:int}", {"x": 12}),
        ("/n/-1", "/n/{x:int}", {"x": -1}),
        ("/r/a/b c/d", "/r/{rest:path}", {"rest": "/a/b c/d"}),
        ("/a/é/d/7", "/a/{x:str}/d/{y:int}", {"x": "é", "y": 7}),
    ],
)
def test_the_route_of_a_path(table: RouteTable[str], path: str, served: str, values: dict[str, object]) -> None:
    assert table.find(path, "GET") == (served, values)


@pytest.mark.parametrize("path", ["/b", "/a/z/y", "/n/x", f"/n/{'9' * 5000}", "/r", "/a/z/d/x", "/n", "/a/z/c/c"])
def test_a_path_without_a_route(table: RouteTable[str], path: str) -> None:
    with pytest.raises(NoSuchPath):
        table.find(path, "GET")


def test_a_method_that_a_path_has_not_is_told_the_others(table: RouteTable[str]) -> None:
    with pytest.raises(HttpRefusal) as refused:
        table.find("/a/z", "PUT")
    assert (refused.value.status, refused.value.headers) == (405, {"Allow": "DELETE, GET"})


def test_a_path_is_served_once() -> None:
    table: RouteTable[int] = RouteTable()
    table.add("/a/{x:str}", "GET", 1)
    with pytest.raises(ValueError, match="two routes"):
        table.add("/a/{y:str}/", "GET", 2)
    assert table.methods("/a/{z:str}") == ["GET"]


@given(st.text("/ab%. é"))
def test_a_normal_path_stays_as_it_is(path: str) -> None:
    once = normalize_path(path)
    assert normalize_path(once) == once
    assert once.startswith("/")
    assert "//" not in once
    assert once == "/" or not once.endswith("/")


def test_metrics_and_documents_name_no_types() -> None:
    assert documented_path("/v1/{a:str}/b/{c:path}") == "/v1/{a}/b/{c}"


def test_each_method_has_its_status() -> None:
    async def act(name: FromPath[str]) -> None: ...

    made = [decorate("/{name:str}")(act) for decorate in (get, post, put, patch, delete)]
    assert [one.status_code for one in made] == [200, 201, 200, 200, 204]
    assert {(one.name, one.takes_request, one.query_names) for one in made} == {("act", False, frozenset())}
    assert get(["/a", "/b"], status_code=202)(act).paths == ("/a", "/b")
