"""Asks one model one question over HTTP: an answer, or an error that says whether it was a timeout."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from meruit.errors import HttpError, HttpFailure, SourceError
from meruit.judges.api import APIS, ApiAnswer
from meruit.judges.prompt import JudgePrompt
from meruit.judges.settings import JudgeSettings
from meruit.sources.credentials import SecretToken
from meruit.sources.http import HttpClient, HttpResponse
from meruit.sources.http_replies import HttpReply, check_status, quote_of
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy, Sleep

MAX_REPLY_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
CONNECT_S = 10.0
FIRST_WAIT_S = 0.5
_OK = range(200, 300)


class RawReply(msgspec.Struct, frozen=True):
    """A reply with status 200: as received, and as its API reads it."""

    raw: str
    answer: ApiAnswer


class JudgeClient:
    """Sends questions to the endpoints of judges; keys come from the environment and appear nowhere else."""

    def __init__(self, environment: Mapping[str, str], *, sleep: Sleep = asyncio.sleep) -> None:
        self._environment = environment
        self._sleep = sleep

    async def ask(
        self, voter: JudgeSettings, prompt: JudgePrompt, *, seed: int | None, key: str, repair: bool
    ) -> RawReply:
        """The reply to one question; raises SourceError. What may have been worked on, and paid, is not sent again."""
        api = APIS[voter.api]
        token = SecretToken.from_environment(voter.key_variable, self._environment) if voter.key_variable else None
        limits = ReadLimits(timeout_s=voter.timeout_s, connect_s=CONNECT_S, reply_bytes=MAX_REPLY_BYTES)
        once = ReadPolicy(retry=BackoffSchedule(tries=1), limits=limits)
        http = HttpClient(token=token, credential_headers=api.headers, policy=once)
        content = msgspec.json.encode(api.body(voter, prompt, seed=seed, repair=repair))
        headers = {
            **api.fixed_headers,
            "Content-Type": "application/json",
            "Accept": "application/json",
            # An endpoint that honours it answers a repeated request once.
            "Idempotency-Key": key,
        }

        async def take(response: HttpResponse) -> RawReply:
            return _read(await _read_reply(response, token), voter.api)

        for wait_s in BackoffSchedule(tries=voter.retries + 1, first_wait_s=FIRST_WAIT_S).waits_s():
            try:
                return await http.request("POST", voter.url + api.path, take, headers=headers, content=content)
            except SourceError as trouble:
                if not trouble.again or may_be_paid(trouble):
                    raise
                await self._sleep(wait_s if trouble.wait_s is None else trouble.wait_s)
        return await http.request("POST", voter.url + api.path, take, headers=headers, content=content)


_UNPAID = frozenset(
    {
        HttpFailure.ADDRESS,
        HttpFailure.CREDENTIAL,
        HttpFailure.CONNECTION,
        HttpFailure.UNAUTHORIZED,
        HttpFailure.REDIRECT,
        HttpFailure.BUSY,
    }
)


def is_timeout(error: SourceError) -> bool:
    """Whether the endpoint took too long."""
    return isinstance(error, HttpError) and error.reason is HttpFailure.TIMEOUT


def may_be_paid(error: SourceError) -> bool:
    """Whether the endpoint may have worked on the question, and charge for it, although no answer came."""
    return isinstance(error, HttpError) and error.reason not in _UNPAID


async def _read_reply(response: HttpResponse, token: SecretToken | None) -> HttpReply:
    """The whole reply; raises SourceError for one that is not an answer."""
    if response.status in _OK:
        return await response.read()
    reply = await response.read_start(MAX_ERROR_BYTES)
    check_status(reply, token)
    raise SourceError(
        f"{reply.where} answered with status {reply.status}{quote_of(reply)}; check the judge's model and settings"
    )


def _read(reply: HttpReply, api: str) -> RawReply:
    raw = reply.content.decode(errors="replace")
    try:
        payload: Any = json.loads(raw)
    except (ValueError, RecursionError):
        why = f"{reply.where} sent a reply that is not JSON; check the address"
        raise HttpError(HttpFailure.BROKEN_OFF, why) from None
    if isinstance(payload, dict) and payload.get("error"):
        # Some endpoints report an error in a reply whose status says that all is well.
        raise HttpError(HttpFailure.BUSY, f"{reply.where} answered with an error{quote_of(reply)}", again=True)
    return RawReply(raw, APIS[api].read(payload))
