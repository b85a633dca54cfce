"""Casts votes: each question once, within the limits, several at a time, on an event loop of its own.

One loop for the whole process, because works are judged in many threads and loops at the same time, and what is asked
already, how many requests are open and what may still be spent must be known in one place.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from meruit.errors import RecordTampered, SourceError, UnreadableAnswer
from meruit.judge.votes import decide_votes
from meruit.judges.answer import ParsedAnswer, read_answer
from meruit.judges.api import TokenUse
from meruit.judges.client import JudgeClient, RawReply, is_timeout, may_be_paid
from meruit.judges.prices import CallPrice, PriceBook, find_price, no_prices, to_micros
from meruit.judges.prompt import REPAIR, JudgePrompt, ShownWork, build_prompt
from meruit.judges.scope import VERIFICATION, JudgingScope
from meruit.judges.settings import JudgingSettings
from meruit.judges.vote_records import MAX_SENDS, CallCost, CallLimits, JudgeCall, Reservation, VoteRecords
from meruit.judges.voter import ReadyJudge, Voter
from meruit.model.canonical import digest
from meruit.model.evidence import Measured, Missing
from meruit.model.vote import ANSWERED, JudgeEvidence, Vote, VoteStatus

T = TypeVar("T")

MAX_RAW_CHARS = 16_384
"""Characters of an answer that the evidence keeps."""
OVERHEAD_TOKENS = 256
"""What an endpoint adds to a prompt: roles, and the names of fields."""


class JudgeLoop:
    """An event loop in a thread of its own, begun when it is first needed; a forked process begins its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something there, from any other loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._get()))

    def _get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="meruit-judges", daemon=True).start()
            return self._loop


class VotingDesk:
    """Casts the votes of all judges of a process."""

    def __init__(
        self,
        client: JudgeClient,
        settings: JudgingSettings,
        records: VoteRecords,
        *,
        clock: Callable[[], datetime],
        prices: PriceBook = no_prices,
        timer: Callable[[], float] = time.monotonic,
        fresh: bool = False,
    ) -> None:
        self.records = records
        self.fresh = fresh
        self._client, self._settings, self._clock, self._timer = client, settings, clock, timer
        self._prices = prices
        self._loop = JudgeLoop()
        self._casting: dict[tuple[str, str], asyncio.Task[Vote]] = {}
        self._open = 0
        """Calls that are not answered yet."""
        self._slots: asyncio.Semaphore | None = None
        self._changed: asyncio.Condition | None = None

    async def judge(self, judge: ReadyJudge, shown: ShownWork, scope: JudgingScope) -> Measured | Missing:
        """The value that the votes agree on, with the votes; or why there is none."""
        return await self._loop.run(self._judge(judge, shown, scope))

    async def _judge(self, judge: ReadyJudge, shown: ShownWork, scope: JudgingScope) -> Measured | Missing:
        votes: list[Vote] = []
        question = judge.question
        finding: Measured | Missing = _decide(judge, votes)
        for stage in range(len(judge.stages)):
            casting = (self._cast(judge, stage, ordinal, shown, scope) for ordinal in range(1, question.votes + 1))
            votes += await asyncio.gather(*casting)
            finding = _decide(judge, votes)
            if isinstance(finding, Measured):
                break
        return finding

    async def _cast(self, judge: ReadyJudge, stage: int, ordinal: int, shown: ShownWork, scope: JudgingScope) -> Vote:
        """One vote: as it was answered before, or asked now. Two works that ask the same share one request."""
        voter = judge.voter(stage, ordinal)
        seed = digest([voter.version, shown.parts, ordinal])
        prompt = build_prompt(judge.question, shown.parts, seed)
        key = digest([voter.version, prompt.digest, ordinal])
        place = {"voter": voter.name, "stage": stage, "ordinal": ordinal}
        shared = self._casting.get((scope.tenant, key))
        if shared is None:
            try:
                vote = None if self.fresh else await self.records.find(scope.tenant, key)
            except RecordTampered as problem:
                # A vote that was changed decides nothing, and the question is not asked in secret once more.
                draft = _draft(key, voter, ordinal, stage, prompt, self._clock())
                return msgspec.structs.replace(draft, problem=str(problem))
            if vote is not None:
                return msgspec.structs.replace(vote, cached=True, **place)
            # Another work may have begun to ask while the records were read.
            shared = self._casting.get((scope.tenant, key))
        if shared is None:
            draft = _draft(key, voter, ordinal, stage, prompt, self._clock())
            asking = _Asking(judge=judge, voter=voter, draft=draft, prompt=prompt, scope=scope, shown=shown)
            shared = asyncio.create_task(self._ask(asking))
            self._casting[scope.tenant, key] = shared
            shared.add_done_callback(lambda _task: self._casting.pop((scope.tenant, key), None))
        # A work that is no longer waited for must not take the vote from another.
        return msgspec.structs.replace(await asyncio.shield(shared), **place)

    async def _ask(self, asking: "_Asking") -> Vote:
        """Ask the model, and once more where its answer cannot be read; never raises for what the endpoint does."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._settings.concurrency)
        async with self._slots:
            vote = await self._call(asking, TokenUse(0, 0), repair=False)
            if vote.status is not VoteStatus.UNREADABLE:
                return vote
            return await self._call(asking, TokenUse(vote.input_tokens, vote.output_tokens), repair=True)

    async def _call(self, asking: "_Asking", earlier: TokenUse, *, repair: bool) -> Vote:
        """One request, counted before it is sent. `earlier` is what the request before it has cost."""
        draft = msgspec.structs.replace(asking.draft, repaired=repair)
        now = self._clock()
        limits = self._limits(asking)
        price = find_price(asking.voter.settings, now, self._prices if _needs_price(asking, limits) else no_prices)
        call = asking.call(now, price, repair=repair, fresh=self.fresh)
        reserved = await self._reserve(call, limits)
        if reserved is not Reservation.GRANTED:
            known = {"input_tokens": earlier.input, "output_tokens": earlier.output}
            status = VoteStatus.FAILED if reserved is Reservation.POISONED else VoteStatus.LIMIT
            return msgspec.structs.replace(draft, status=status, problem=_REFUSED[reserved], **known)
        began = self._timer()
        vote, used = draft, TokenUse()
        try:
            seed = asking.voter.seed(draft.ordinal)
            reply = await self._client.ask(asking.voter.settings, asking.prompt, seed=seed, key=call.key, repair=repair)
            used = reply.answer.tokens
            vote = _read_vote(draft, reply, asking.judge)
        except SourceError as trouble:
            status = VoteStatus.TIMEOUT if is_timeout(trouble) else VoteStatus.FAILED
            vote = msgspec.structs.replace(draft, status=status, problem=str(trouble))
            used = TokenUse() if may_be_paid(trouble) else TokenUse(0, 0)
        finally:
            vote = msgspec.structs.replace(
                vote,
                input_tokens=_add(earlier.input, used.input),
                output_tokens=_add(earlier.output, used.output),
                latency_ms=round((self._timer() - began) * 1_000),
            )
            is_answered = vote.status in ANSWERED and (repair or vote.status is not VoteStatus.UNREADABLE)
            await self._finish(call, vote if is_answered else None, _cost(used, price))
        return vote

    async def _reserve(self, call: JudgeCall, limits: CallLimits) -> Reservation:
        """Whether the call may be sent; where others are open, what they leave over is waited for."""
        # One at a time: each sees what the one before has reserved.
        async with self._condition():
            while (found := await self.records.reserve(call, limits)) is not Reservation.GRANTED:
                if not self._open or found is Reservation.POISONED:
                    return found
                await self._condition().wait()
            self._open += 1
        return found

    def _limits(self, asking: "_Asking") -> CallLimits:
        settings, scope = self._settings, asking.scope
        tokens, costs, of_voter = [scope.max_tokens], [to_micros(scope.max_cost)], None
        if scope.account != VERIFICATION:
            tokens.append(settings.max_tokens_per_evaluation)
            costs.append(to_micros(settings.max_cost_per_evaluation))
            of_voter = to_micros(asking.voter.settings.max_cost_per_evaluation)
        return CallLimits(
            account_tokens=min((one for one in tokens if one is not None), default=None),
            day_tokens=settings.max_tokens_per_day,
            account_micros=min((one for one in costs if one is not None), default=None),
            day_micros=to_micros(settings.max_cost_per_day),
            voter_micros=of_voter,
        )

    async def _finish(self, call: JudgeCall, vote: Vote | None, cost: CallCost) -> None:
        try:
            await self.records.finish(call, vote, cost)
        finally:
            async with self._condition():
                self._open -= 1
                self._condition().notify_all()

    def _condition(self) -> asyncio.Condition:
        # Made inside the loop, to which it belongs.
        if self._changed is None:
            self._changed = asyncio.Condition()
        return self._changed


@dataclass(frozen=True, slots=True)
class _Asking:
    """All that asking for one vote takes."""

    judge: ReadyJudge
    voter: Voter
    draft: Vote
    prompt: JudgePrompt
    scope: JudgingScope
    shown: ShownWork

    def call(self, now: datetime, price: CallPrice | None, *, repair: bool, fresh: bool) -> JudgeCall:
        """One request, with the most that it can cost."""
        most = self.prompt.bytes_total + len(REPAIR) + OVERHEAD_TOKENS
        answer = self.voter.settings.max_tokens
        # An endpoint that honours the key would answer a question asked again on purpose with the old answer.
        again = f"-{self.draft.asked_at.timestamp():.6f}" if fresh else ""
        return JudgeCall(
            tenant=self.scope.tenant,
            account=self.scope.account,
            voter=self.voter.name,
            model=self.voter.settings.model or "",
            output_digest=self.shown.output_digest or "",
            other_digest=self.shown.other_digest or "",
            reserved_tokens=most + answer,
            began_at=now,
            key=f"{self.draft.key}{again}{'-repair' if repair else ''}",
            reserved_micros=None if price is None else price.micros(most, answer),
            fresh=fresh,
        )


_REFUSED = {
    Reservation.TOKEN_LIMIT: "the limit of tokens is reached",
    Reservation.COST_LIMIT: "the limit of cost is reached",
    Reservation.POISONED: (
        f"it was sent {MAX_SENDS} times, and each time the process ended before the answer was recorded; "
        "--fresh asks again"
    ),
}


def _needs_price(asking: _Asking, limits: CallLimits) -> bool:
    """Whether a cost is limited or shown; loading a price book takes a moment."""
    return asking.scope.account != VERIFICATION or limits.day_micros is not None


def _cost(used: TokenUse, price: CallPrice | None) -> CallCost:
    if used.input is None or used.output is None:
        return CallCost()
    # A call that the endpoint did not work on costs nothing, whatever the price of a request.
    micros = 0 if used == TokenUse(0, 0) else None if price is None else price.micros(used.input, used.output)
    return CallCost(input_tokens=used.input, output_tokens=used.output, micros=micros)


def _decide(judge: ReadyJudge, votes: list[Vote]) -> Measured | Missing:
    question = judge.question
    choices = None if question.choices is None else [*question.choices]
    return decide_votes(
        JudgeEvidence(
            name=judge.name,
            version=judge.version,
            choices=choices,
            scale=question.scale,
            agree=question.agree,
            votes=[*votes],
        )
    )


def _draft(key: str, voter: Voter, ordinal: int, stage: int, prompt: JudgePrompt, now: datetime) -> Vote:
    return Vote(
        key=key,
        voter=voter.name,
        ordinal=ordinal,
        stage=stage,
        status=VoteStatus.FAILED,
        answer=None,
        reason="",
        api=voter.settings.api,
        model_asked=voter.settings.model or "",
        model="",
        parameters=voter.parameters(ordinal),
        prompt_digest=prompt.digest,
        order=[*prompt.order],
        raw="",
        problem=None,
        input_tokens=None,
        output_tokens=None,
        latency_ms=0,
        asked_at=now,
        cached=False,
        repaired=False,
    )


def _read_vote(draft: Vote, reply: RawReply, judge: ReadyJudge) -> Vote:
    answer = reply.answer
    vote = msgspec.structs.replace(draft, raw=_cut(reply.raw), model=answer.model)
    if answer.refusal is not None:
        return msgspec.structs.replace(vote, status=VoteStatus.REFUSED, problem="the model refused to answer")
    try:
        parsed: ParsedAnswer = read_answer(answer.reply, judge.question)
    except UnreadableAnswer as problem:
        return msgspec.structs.replace(vote, status=VoteStatus.UNREADABLE, problem=str(problem))
    return msgspec.structs.replace(vote, status=VoteStatus.USABLE, answer=parsed.answer, reason=parsed.reason)


def _cut(raw: str) -> str:
    left = len(raw) - MAX_RAW_CHARS
    return raw if left <= 0 else f"{raw[:MAX_RAW_CHARS]}… [{left} characters more]"


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
