"""Secrets for other systems: from an environment variable, from a command, or given. They never appear in a text."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self
from urllib.parse import quote

from meruit.errors import AuthorError, SourceError

COMMAND_S = 30.0
"""How long a command may take to print a token."""
MAX_TOKEN_BYTES = 64 * 1024
REDACTED = "***"


class SecretToken:
    """A secret that is fetched when it is first needed, and again when a server refuses it."""

    def __init__(self, name: str, fetch: Callable[[], Awaitable[str]]) -> None:
        self._name = name
        self._fetch = fetch
        self._value: str | None = None
        self._values: set[str] = set()

    @classmethod
    def from_value(cls, value: str) -> Self:
        """Use a secret that the caller has."""

        async def fetch() -> str:
            return value

        return cls("a given token", fetch)

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """Use the value of an environment variable."""

        async def fetch() -> str:
            if name not in environment:
                raise SourceError(f"the environment variable {name} is not set; put the token into it")
            return environment[name].strip()

        return cls(f"the token in {name}", fetch)

    @classmethod
    def from_command(cls, argv: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Use what a command prints; it runs without a shell."""
        if not argv or isinstance(argv, str):
            raise AuthorError("a command is a list: the program, then its arguments")

        async def fetch() -> str:
            return await _run_command(list(argv), environment)

        return cls(f"the token that {argv[0]} prints", fetch)

    async def value(self) -> str:
        """Return the secret; raises SourceError if there is none."""
        if self._value is None:
            found = await self._fetch()
            if not found:
                raise SourceError(f"{self._name} is empty; set the whole token")
            self._value = found
            self._values.add(found)
        return self._value

    async def renew(self, refused: str) -> bool:
        """Fetch the secret again after a server refused it; returns whether there is another one to try."""
        # Another task may have renewed it in the meantime.
        if self._value == refused:
            self._value = None
        return await self.value() != refused

    def redact(self, text: str) -> str:
        """Remove the secret, and any before it, from a text."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, REDACTED).replace(quote(value, safe=""), REDACTED)
        return text

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Token({self._name})"


def redact(text: str, *tokens: SecretToken | None) -> str:
    """Remove secrets from a text."""
    for token in tokens:
        text = token.redact(text) if token is not None else text
    return text


async def _run_command(argv: list[str], environment: Mapping[str, str]) -> str:
    # Only the program is named: its arguments and its output may hold the secret.
    program = argv[0]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
            limit=MAX_TOKEN_BYTES,
        )
    except (OSError, ValueError) as problem:
        raise SourceError(f"{program}, which prints the token, cannot be run: {type(problem).__name__}") from None
    try:
        async with asyncio.timeout(COMMAND_S):
            # One byte more than allowed: this bounds the output of any command.
            output = await _first_bytes(process.stdout, MAX_TOKEN_BYTES + 1)
            if len(output) > MAX_TOKEN_BYTES:
                raise SourceError(f"{program} printed more than {MAX_TOKEN_BYTES:,} bytes; a token is shorter")
            status = await process.wait()
    except TimeoutError:
        raise SourceError(f"{program} printed no token within {COMMAND_S:g} s; run it by hand to see why") from None
    finally:
        await _kill_process_group(process)
    if status != 0:
        raise SourceError(f"{program}, which prints the token, ended with status {status}; run it by hand to see why")
    return output.decode(errors="replace").strip()


async def _first_bytes(stream: asyncio.StreamReader | None, most: int) -> bytes:
    found = bytearray()
    while stream is not None and len(found) < most:
        chunk = await stream.read(most - len(found))
        if not chunk:
            break
        found += chunk
    return bytes(found)


async def _kill_process_group(process: asyncio.subprocess.Process) -> None:
    """End a command and every process that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
