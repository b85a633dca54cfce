"""Tokens: fetched when needed, renewed once, shown to nobody."""

import asyncio
import os
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import AuthorError, SourceError
from meruit.sources import credentials
from meruit.sources.credentials import SecretToken, redact

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def python(code: str, **environment: str) -> SecretToken:
    return SecretToken.from_command([sys.executable, "-c", code], {**ENVIRONMENT, **environment})


def value(token: SecretToken) -> str:
    return asyncio.run(token.value())


@given(st.text(min_size=4), st.text(), st.text())
def test_a_secret_is_in_no_text(secret: str, before: str, after: str) -> None:
    token = SecretToken.from_value(secret)
    asyncio.run(token.value())
    if secret not in credentials.REDACTED:
        shown = redact(before + secret + after, token, None)
        assert secret not in shown or secret in (before + credentials.REDACTED + after)
    assert repr(token) == "Token(a given token)"


def test_a_variable_is_read_when_it_is_needed() -> None:
    environment: dict[str, str] = {}
    token = SecretToken.from_environment("EHR_TOKEN", environment)
    with pytest.raises(SourceError, match="EHR_TOKEN"):
        value(token)
    environment["EHR_TOKEN"] = "  s3cret\n"
    assert value(token) == "s3cret"
    assert "s3cret" not in repr(token) + str(token)


def test_a_command_prints_it_without_a_shell() -> None:
    assert value(python("import os; print('  ' + os.environ['NAME'])", NAME="$(id)")) == "$(id)"
    assert "$HOME" in value(SecretToken.from_command(["echo", "$HOME", ";", "id"], ENVIRONMENT))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; print('s3cret'); sys.exit(3)", "status 3"),
        ("pass", "is empty"),
        ("print('x' * 100_000)", "more than 65,536 bytes"),
    ],
)
def test_a_failing_token_command_shows_nothing(code: str, words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        value(python(code))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("argv", [[], "gcloud auth print-access-token"])
def test_a_command_is_a_list(argv: Any) -> None:
    with pytest.raises(AuthorError, match="list"):
        SecretToken.from_command(argv, ENVIRONMENT)


def test_a_command_that_cannot_be_run_is_trouble() -> None:
    with pytest.raises(SourceError, match="/nowhere/at-all"):
        value(SecretToken.from_command(["/nowhere/at-all"], ENVIRONMENT))


def test_a_slow_token_command_ends_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "COMMAND_S", 0.2)
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"0\.2 s"):
        value(SecretToken.from_command(["sh", "-c", "sleep 600 & sleep 600"], ENVIRONMENT))
    assert time.monotonic() - started < 60


def test_a_secret_is_fetched_once_and_again_when_it_was_refused() -> None:
    values = iter(["one", "two", "two"])

    async def fetch() -> str:
        return next(values)

    async def used() -> None:
        token = SecretToken("a test's", fetch)
        assert [await token.value(), await token.value()] == ["one", "one"]
        assert await token.renew("one")
        # Somebody else who was refused with the old one has nothing to fetch.
        assert await token.renew("one")
        assert await token.value() == "two"
        assert not await token.renew("two")
        assert token.redact("one two three") == "*** *** three"

    asyncio.run(used())
