"""A chat endpoint gives a whole answer, refuses for good, or is to be asked later; it never gives half an answer."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.servers.chat import (
    Break,
    Breaks,
    Call,
    ChatServer,
    Fails,
    Held,
    Json,
    Raw,
    Says,
    TooMany,
    chunks,
    completion,
    problems,
    sse,
)

from meruit.errors import AuthorError, MeruitError, ModelRefused, Unreachable, UnreadableChatReply
from meruit.gate.chat import endpoint as chat
from meruit.gate.chat.endpoint import MAX_WAIT_S, ChatEndpoint
from meruit.gate.chat.stream import MAX_ID_CHARS, ChatAnswerBuilder, iter_event_data, parse_json, to_sendable_message
from meruit.model.chat import ChatModel, ModelAnswer, ToolSpec, Usage
from meruit.sources.credentials import SecretToken

KEY = "sk-secret/0123456789"
BASE = "https://models.test/v1"
HELLO: list[Json] = [{"role": "user", "content": "hello"}]
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
STREAMED: Json = {"model": "m", "messages": HELLO, "stream_options": {"include_usage": True}}
NAMES = (
    *("choices", "message", "delta", "content", "tool_calls", "function", "name", "arguments", "index", "id", "usage"),
    *("prompt_tokens", "prompt_tokens_details", "cached_tokens", "finish_reason", "error", "code"),
)
"""What a reply is made of."""
FIRST = Says("let me see", [Call("add", {"a": 1}), Call("add", {"a": 2})])


class Naps:
    """Sleeps no time at all, and remembers for how long."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken_s.append(seconds)


def ask(model: ChatModel, messages: Sequence[Json] = HELLO, force: str | None = None) -> ModelAnswer:
    return asyncio.run(model.answer(messages, [ADD], force))


def endpoint(server: ChatServer, **others: Any) -> ChatEndpoint:
    return ChatEndpoint(server.url, "m", **({"sleep": Naps()} | others))


def behind(handler: Callable[[httpx.Request], httpx.Response], **others: Any) -> ChatEndpoint:
    """An endpoint whose server is a function."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return ChatEndpoint(BASE, "m", client=client, **({"sleep": Naps()} | others))


def replying(content: bytes, **headers: str) -> ChatEndpoint:
    return behind(lambda _: httpx.Response(200, content=content, headers=headers), retries=0)


def put_together(parts: Sequence[bytes]) -> ChatAnswerBuilder:
    """What is gathered from a stream that comes in these parts."""

    async def all_parts() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def gathered() -> ChatAnswerBuilder:
        gathering = ChatAnswerBuilder()
        async for data in iter_event_data(all_parts()):
            gathering.add(parse_json(data))
        return gathering

    return asyncio.run(gathered())


def as_stream(says: Says) -> bytes:
    return b"".join(sse(json.dumps(chunk, ensure_ascii=False)) for chunk in chunks(says, STREAMED)) + sse("[DONE]")


def in_one_piece(says: Says) -> ModelAnswer:
    gathering = ChatAnswerBuilder()
    gathering.add(parse_json(json.dumps(completion(says, STREAMED)).encode()))
    assert gathering.is_complete
    return gathering.answer(0)


# Line ends of other alphabets are text, and a sign beyond the first plane is two in JSON.
texts = st.text(st.sampled_from('ab{}":,\n\r\u2028\x85é😀\\ '), max_size=30)
answers = st.builds(
    Says,
    texts,
    st.lists(
        st.builds(
            Call,
            st.sampled_from(["add", "agent_output", "functions.add " * 9]),
            texts,
            st.sampled_from([None, "", "x"]),
        ),
        max_size=4,
    ),
    st.sampled_from([None, "length", "content_filter"]),
    st.tuples(*[st.integers(0, 10**6)] * 3),
    st.integers(1, 9),
)


# The rules.


@given(answers, st.integers(1, 40))
def test_a_stream_in_any_pieces_makes_the_answer_that_one_piece_makes(says: Says, size: int) -> None:
    sent = as_stream(says)
    gathering = put_together([sent[place : place + size] for place in range(0, len(sent), size)])
    assert gathering.is_complete
    assert gathering.answer(0) == in_one_piece(says)


@given(answers, st.data())
def test_a_broken_stream_is_an_answer_only_if_it_is_complete(says: Says, data: st.DataObject) -> None:
    sent = as_stream(says)
    gathering = put_together([sent[: data.draw(st.integers(0, len(sent)))]])
    if gathering.is_complete:
        told, all_of_it = gathering.answer(0), in_one_piece(says)
        assert (told.text, told.calls, told.finish) == (all_of_it.text, all_of_it.calls, all_of_it.finish)


@given(answers, st.integers(0, 50))
def test_every_call_has_an_id_of_its_own_and_always_the_same(says: Says, before: int) -> None:
    gathering = put_together([as_stream(says)])
    ids = [call.id for call in gathering.answer(before).calls]
    assert all(ids)
    assert len({*ids}) == len(ids)
    assert ids == [call.id for call in gathering.answer(before).calls]


@given(answers)
def test_a_conversation_with_any_answer_in_it_is_one_that_servers_take(says: Says) -> None:
    answer = in_one_piece(says)
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for one in answer.calls
    ]
    said = {"role": "assistant", "content": answer.text, **({"tool_calls": calls} if calls else {})}
    replies = [{"role": "tool", "tool_call_id": one.id, "content": "done"} for one in answer.calls]
    messages = [*map(to_sendable_message, [*HELLO, said, *replies])]
    assert [*problems({"model": "m", "messages": messages})] == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    content=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()),
    status=st.sampled_from([200, 201, 204, 301, 400, 401, 404, 408, 429, 500, 501, 503]),
    kind=st.sampled_from(["application/json", "text/event-stream", "text/html", ""]),
)
@example(json.dumps({"choices": [{"message": {"content": f"I was sent {KEY}"}}]}).encode(), 200, "application/json")
@example(json.dumps({"error": {"message": f"bad key {KEY}", "code": 401}}).encode(), 200, "application/json")
@example(json.dumps({"error": KEY}).encode(), 400, "application/json")
@example(b"[" * 10_000, 200, "application/json")
@example(b"data: " + b"[" * 10_000 + b"\n\n", 200, "text/event-stream")
@example(b'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n', 200, "text/event-stream")
@example(b'{"choices": []}', 200, "application/json")
def test_whatever_comes_is_an_answer_or_an_error_of_ours_without_the_key(
    content: bytes, status: int, kind: str
) -> None:
    model = behind(lambda _: httpx.Response(status, content=content, headers={"Content-Type": kind}), api_key=KEY)
    came: ModelAnswer | MeruitError
    try:
        came = ask(model)
    except (Unreachable, ModelRefused) as problem:
        came = problem
    if isinstance(came, ModelAnswer):
        assert status in range(200, 300)
        assert ModelAnswer.from_json(came.to_json()) == came
    else:
        assert KEY not in str(came)
        assert len(str(came)) < 1000


@given(st.text(max_size=30) | st.floats().map(str) | st.integers().map(str))
@example("nan")
@example("inf")
@example("-3")
@example("Tue, 15 Nov 2022 08:12:31 GMT")
def test_no_pause_is_longer_than_the_longest_whatever_a_server_asks_for(asked: str) -> None:
    naps = Naps()
    headers = {b"Retry-After": asked.encode(), b"Date": b"Tue, 15 Nov 2022 08:12:31 GMT"}
    model = behind(lambda _: httpx.Response(429, headers=headers), sleep=naps)
    with pytest.raises(Unreachable):
        ask(model)
    assert len(naps.taken_s) == chat.RETRIES
    assert all(0 <= nap_s <= MAX_WAIT_S for nap_s in naps.taken_s)


# A server that speaks the protocol.


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_its_text_its_calls_and_what_it_cost(stream: bool) -> None:
    with ChatServer([FIRST], key=KEY) as server:
        answer = ask(endpoint(server, api_key=KEY, stream=stream, settings={"temperature": 0}), force="add")
    assert (answer.text, answer.finish, answer.model, answer.id) == (
        "let me see",
        "tool_calls",
        "m-2026-01-01",
        "chatcmpl-1",
    )
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("add", {"a": 1}), ("add", {"a": 2})]
    assert answer.usage == Usage(10, 5, 2, 1)
    told = {"name": "add", "description": "Adds.", "parameters": ADD.parameters}
    expected = {
        "model": "m",
        "messages": HELLO,
        "tools": [{"type": "function", "function": told}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "temperature": 0,
    } | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    assert server.asked == [expected]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "trouble", [TooMany("7"), Fails(500), Fails(503), Fails(408), Fails(409), Fails(425), Breaks(FIRST)]
)
def test_what_may_pass_is_asked_again_and_then_left_to_others(stream: bool, trouble: Fails | Breaks) -> None:
    with ChatServer([trouble, trouble, Says("at last")]) as server:
        naps = Naps()
        assert ask(endpoint(server, stream=stream, sleep=naps)).text == "at last"
        assert naps.taken_s == ([7.0, 7.0] if isinstance(trouble, TooMany) else [0.5, 1.0])
    with ChatServer([trouble] * 4) as server:
        with pytest.raises(Unreachable, match="/chat/completions"):
            ask(endpoint(server, stream=stream, retries=3))
        assert len(server.asked) == 4


@pytest.mark.parametrize("how", Break)
def test_a_broken_stream_is_never_half_an_answer(how: Break) -> None:
    with ChatServer([Breaks(FIRST, how), FIRST]) as server:
        answer = ask(endpoint(server, stream=True))
        assert [call.arguments for call in answer.calls] == ['{"a": 1}', '{"a": 2}']
        assert answer.text == "let me see"
    with ChatServer([Breaks(FIRST, how)]) as server, pytest.raises(Unreachable):
        ask(endpoint(server, stream=True, retries=0))


def test_an_endpoint_that_says_nothing_in_time_is_left_to_others() -> None:
    held = Held(Says("too late"))
    with ChatServer([held]) as server, pytest.raises(Unreachable, match=r" 0\.05 s"):
        ask(endpoint(server, timeout_s=0.05, retries=0))


def test_an_endpoint_that_is_not_there_is_left_to_others() -> None:
    with ChatServer() as server:
        gone = endpoint(server, retries=1)
    with pytest.raises(Unreachable, match="ConnectError"):
        ask(gone)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            Fails(400, "This model's maximum context length is 8 tokens.", code="context_length_exceeded"),
            "maximum context",
        ),
        (Fails(403, "Country not supported."), "token"),
        (Fails(404, "Unknown."), "a model 'm'"),
        (Fails(422, "No."), "status 422"),
        (Fails(501, "Not here."), "status 501"),
        (Fails(429, "You exceeded your current quota.", code="insufficient_quota"), "exceeded your current quota"),
        (Raw(b"<html><title>Sign in</title>", 403, "text/html"), "it says: Sign in"),
        (Raw(b"", 307, headers={"Location": "https://elsewhere.test/"}), "https://elsewhere.test/"),
    ],
)
def test_a_permanent_refusal_is_raised_at_once(refusal: Fails | Raw, said: str) -> None:
    with ChatServer([refusal], key=KEY) as server:
        with pytest.raises(ModelRefused, match=said):
            ask(endpoint(server, api_key=KEY))
        assert len(server.asked) == 1


def test_a_page_instead_of_an_answer_is_reported() -> None:
    said = "it says: Welcome"
    page = Raw(b"<html><title>Welcome</title>", kind="text/html")
    with ChatServer([page]) as server, pytest.raises(Unreachable, match=said):
        ask(endpoint(server, retries=0))


def test_an_error_under_a_good_status_counts_by_the_status_that_it_names() -> None:
    reply = json.dumps({"error": {"message": "no such key", "code": 401}}).encode()
    with pytest.raises(ModelRefused, match="no such key"):
        ask(replying(reply))
    with pytest.raises(Unreachable, match="busy"):
        ask(replying(b'{"error": "busy"}'))


def test_an_answer_without_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_REPLY_BYTES", 1000)
    with ChatServer([Says("x" * 2000)]) as server, pytest.raises(ModelRefused, match="1,000 bytes"):
        ask(endpoint(server))
    monkeypatch.setattr(chat, "MAX_ERROR_BYTES", 10)
    with ChatServer([Raw(b"x" * 2000, 400)]) as server, pytest.raises(ModelRefused, match="status 400"):
        ask(endpoint(server))


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ran_out_of_tokens_is_an_answer(stream: bool) -> None:
    with ChatServer([Says("", [Call("add", '{"a": '), Call("add", "")], finish="length")]) as server:
        answer = ask(endpoint(server, stream=stream))
    assert answer.finish == "length"
    # The second had not begun: it must not pass for a call without arguments.
    assert [call.arguments for call in answer.calls] == ['{"a": ', "{"]


def test_what_a_filter_left_over_is_an_answer() -> None:
    with ChatServer([Says("I can", finish="content_filter"), Says("", finish="content_filter")]) as server:
        assert ask(endpoint(server)).finish == "content_filter"
        assert ask(endpoint(server)).text == ""


def test_servers_that_bend_the_protocol_are_understood() -> None:
    def said(*choices: Json) -> bytes:
        return b": keep-alive\r\n\r\nevent: chunk\r\n" + b"".join(
            sse(json.dumps({"choices": [choice]})).replace(b"\n", b"\r\n") for choice in choices
        )

    def calling(**call: Any) -> Json:
        return {"delta": {"tool_calls": [call]}}

    end: Json = {"delta": {}, "finish_reason": "tool_calls"}
    one = calling(id="x", function={"name": "add", "arguments": "{"})
    # No numbers; all the same number; a new id with each piece; the name again with each piece; no [DONE].
    for stream, expected in (
        (said(one, calling(function={"arguments": "}"}), calling(id="y", function={"name": "add"}), end), ["{}", ""]),
        (
            said(
                calling(index=0, id="x", function={"name": "add"}),
                calling(index=0, id="y", function={"name": "add"}),
                end,
            ),
            ["", ""],
        ),
        (
            said(
                calling(index=0, id="x", function={"name": "add"}),
                calling(index=0, id="y", function={"arguments": "{}"}),
                end,
            ),
            ["{}"],
        ),
        (said(one, calling(id="x", function={"name": "add", "arguments": "}"}), end), ["{}"]),
    ):
        answer = ask(replying(stream, **{"Content-Type": "text/event-stream"}))
        assert [(call.name, call.arguments) for call in answer.calls] == [("add", text) for text in expected]
    parts = {"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}], "refusal": "; no"}
    calls = [
        {"function": {"name": "add", "arguments": {"a": 1}}},
        {"id": "é" * MAX_ID_CHARS * 2, "function": {"name": "add"}},
    ]
    whole = ask(
        replying(
            json.dumps(
                {"choices": [{"message": parts | {"tool_calls": calls}}, {"index": 1, "message": parts}]}
            ).encode()
        )
    )
    assert whole.text == "in parts; no"
    assert [(call.id, call.arguments) for call in whole.calls] == [("call_1", '{"a": 1}'), ("call_2", "")]
    assert whole.usage == Usage(requests=1, uncounted=1)


def test_a_packed_answer_is_not_unpacked() -> None:
    def packed(_: httpx.Request) -> httpx.Response:
        stream = httpx.ByteStream(gzip.compress(b"x" * 100_000))
        return httpx.Response(200, stream=stream, headers={"Content-Encoding": "gzip"})

    with pytest.raises(ModelRefused, match="gzip"):
        ask(behind(packed, retries=0))


def test_an_answer_has_a_bound_of_calls_and_counts() -> None:
    calls = [{"id": str(number), "function": {"name": "add", "arguments": "{}"}} for number in range(257)]
    with pytest.raises(Unreachable, match="more than 256"):
        ask(replying(json.dumps({"choices": [{"message": {"tool_calls": calls}}]}).encode()))
    huge = {"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 10**400, "completion_tokens": 3}}
    assert ask(replying(json.dumps(huge).encode())).usage == Usage(0, 3, 0, 1, 1)


def test_a_call_without_a_name_is_not_an_answer() -> None:
    with pytest.raises(Unreachable, match="incomplete"):
        ask(replying(b'{"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}'))


def test_a_sign_that_a_stream_cut_in_two_is_one_again() -> None:
    halves = [{"choices": [{"delta": {"content": half}}]} for half in ("\ud83d", "\ude00")]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    assert put_together([sse(json.dumps(one)) for one in (*halves, end)]).answer(0).text == "😀"
    assert put_together([sse(json.dumps(one)) for one in (halves[0], end)]).answer(0).text == "\ufffd"


def test_calls_are_numbered_on_from_those_of_the_conversation() -> None:
    function = {"name": "add", "arguments": "not JSON"}
    messages: list[Json] = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "error"},
    ]
    twice = [Call("add", {}, id=""), Call("add", {}, id="call_2"), Call("add", {}, id="call_2")]
    with ChatServer([Says(calls=twice)]) as server:
        answer = ask(endpoint(server), messages)
    # The one that has an id keeps it.
    assert [call.id for call in answer.calls] == ["call_3", "call_2", "call_4"]
    sent = server.asked[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"unreadable": "not JSON"}


def test_a_request_without_tools_has_no_tools_field() -> None:
    with ChatServer([Says("hello")]) as server:
        assert asyncio.run(endpoint(server).answer(HELLO, [])).text == "hello"
    assert server.asked == [{"model": "m", "messages": HELLO}]


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ModelRefused, match="JSON"):
        ask(replying(b""), [{"role": "user", "content": object()}])


def test_a_date_says_how_long_to_wait_by_the_servers_own_clock() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    until, gone = (format_datetime(now + timedelta(seconds=by), usegmt=True) for by in (9, -9))
    dates = [
        TooMany(until, Date=format_datetime(now, usegmt=True)),
        TooMany(gone, Date=format_datetime(now, usegmt=True)),
    ]
    naps = Naps()
    with ChatServer([*dates, TooMany(until), TooMany("3600"), Says("ok")]) as server:
        ask(endpoint(server, sleep=naps, retries=4))
    # Without the server's clock, a date says nothing, and our own pauses count.
    assert naps.taken_s == [9.0, 0.0, 2.0, MAX_WAIT_S]


# Keys.


def test_a_wrong_key_is_named_by_its_source_and_never_shown() -> None:
    with ChatServer([], key="another") as server:
        model = endpoint(server, api_key_env="CHAT_KEY", environment={"CHAT_KEY": KEY})
        with pytest.raises(ModelRefused, match="CHAT_KEY") as refused:
            ask(model)
        assert [KEY in reply for reply in server.refused] == [True]
        assert KEY not in str(refused.value) + repr(model)
        with pytest.raises(ModelRefused, match="status 401"):
            ask(endpoint(server))


def test_a_key_that_can_be_fetched_again_is_fetched_again() -> None:
    keys = iter(["old", KEY])

    async def fetch() -> str:
        return next(keys)

    with ChatServer([Says("in")], key=KEY) as server:
        assert ask(endpoint(server, api_key=SecretToken("key", fetch))).text == "in"


@pytest.mark.parametrize("key", ["", "two\nlines", "smart “quotes”"])
def test_a_key_that_is_not_valid_is_never_sent(key: str) -> None:
    with ChatServer() as server:
        with pytest.raises(ModelRefused, match="token") as refused:
            ask(endpoint(server, api_key=key))
        assert not server.headers
    assert not key or key not in str(refused.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    model = ChatEndpoint(BASE, "m", api_key_env="CHAT_KEY", environment={})
    with pytest.raises(ModelRefused, match="CHAT_KEY"):
        ask(model)


def test_a_key_does_not_follow_a_redirect_though_the_client_would() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(308, headers={"Location": "https://elsewhere.test/v1/chat/completions"})

    client = httpx.AsyncClient(transport=httpx.MockTransport(handler), follow_redirects=True)
    with pytest.raises(ModelRefused, match="status 308"):
        ask(ChatEndpoint(BASE, "m", api_key=KEY, client=client))
    assert asked == ["models.test"]


# What an author may write.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"base_url": "ftp://models.test"}, "https://"),
        ({"base_url": "models.test/v1"}, "https://"),
        ({"base_url": "https://user:pass@models.test/v1"}, "token instead"),
        ({"model": ""}, "model"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"retries": -1}, "retries.*-1"),
        ({"settings": {"n": 2, "model": "x"}}, "model, n"),
        ({"settings": {"temperature": object()}}, "settings.*JSON"),
        ({"api_key": KEY, "api_key_env": "CHAT_KEY"}, "not both"),
        ({"api_key_env": "CHAT_KEY"}, "environment=os.environ"),
    ],
)
def test_settings_that_are_not_valid_are_refused(wrong: Json, said: str) -> None:
    asked: Json = {"base_url": BASE, "model": "m"}
    with pytest.raises(AuthorError, match=said):
        ChatEndpoint(**(asked | wrong))


@pytest.mark.parametrize(
    ("base_url", "called"),
    [
        ("https://models.test/v1", "https://models.test/v1/chat/completions"),
        ("https://models.test/v1/", "https://models.test/v1/chat/completions"),
        ("https://models.test", "https://models.test/chat/completions"),
        ("https://models.test/v1?api-version=7", "https://models.test/v1/chat/completions?api-version=7"),
    ],
)
def test_the_address_is_the_base_and_the_usual_path(base_url: str, called: str) -> None:
    assert repr(ChatEndpoint(base_url, "m")) == f"ChatEndpoint({called!r}, 'm')"


def test_an_endpoint_serves_one_event_loop_after_another() -> None:
    with ChatServer([Says("one"), Says("two")]) as server:
        model = endpoint(server)
        assert [ask(model).text, ask(model).text] == ["one", "two"]


def test_an_endpoint_over_tls_that_is_down_is_left_to_others() -> None:
    with pytest.raises(Unreachable):
        ask(ChatEndpoint("https://127.0.0.1:9/v1", "m", retries=0))


def test_pieces_that_are_not_an_answer_are_refused() -> None:
    with pytest.raises(UnreadableChatReply, match="choices"):
        ChatAnswerBuilder().add({"object": "list"})
    assert issubclass(ModelRefused, MeruitError)


def test_usage_that_is_not_a_count_is_unknown_not_zero() -> None:
    wrong = {"prompt_tokens": -5, "completion_tokens": True, "prompt_tokens_details": {"cached_tokens": 1.5}}
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    usages: tuple[Any, ...] = (wrong, [], {"prompt_tokens_details": None}, None, {}, nothing, {"completion_tokens": 0})
    for usage in usages:
        gathering = ChatAnswerBuilder()
        gathering.add({"choices": [{"message": {"content": "hi"}}], "usage": usage})
        found = gathering.answer(0).usage
        assert (found, found.is_known) == (Usage(requests=1, uncounted=1), False)


def test_sums_of_usage_remember_what_was_not_counted() -> None:
    together = Usage(10, 5, 2, 1) + Usage(requests=1, uncounted=1)
    assert (together, together.is_known) == (Usage(10, 5, 2, 2, 1), False)
    assert Usage(10, 0, 0, 1).is_known
