"""The service that answers the metric `judge`: settings in, extractors out."""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from meruit.judges.prices import PriceBook, check_prices, no_prices
from meruit.judges.prompt import show_work
from meruit.judges.scope import current_scope
from meruit.judges.settings import JudgeSettings, JudgingSettings
from meruit.judges.vote_records import MemoryVotes, VoteRecords
from meruit.judges.voter import ReadyJudge, find_judge
from meruit.metrics.support.extractor import MetricExtractor, MetricService
from meruit.metrics.support.judge_question import JudgeQuestion, read_question
from meruit.model.evidence import Measured, Missing, Provenance
from meruit.model.vote import JUDGE
from meruit.model.work import Work
from meruit.registry import Ask

if TYPE_CHECKING:
    from meruit.judges.client import JudgeClient
    from meruit.judges.desk import VotingDesk


def _utc_now() -> datetime:
    return datetime.now(UTC)


class JudgeExtractor(MetricExtractor):
    """One question to one judge."""

    provenance = Provenance.JUDGED

    def __init__(self, judge: ReadyJudge, desk: "VotingDesk") -> None:
        self.judge, self.desk = judge, desk
        self.version = judge.version

    def supported_metrics(self) -> list[str]:
        """Every name that `extract` may return."""
        return [JUDGE]

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Mapping[str, Measured | Missing]:
        """What the votes agree on, with the votes as evidence."""
        work = Work(input=task_input, output=task_output, metadata=metadata)
        shown = show_work(self.judge.question, work)
        if isinstance(shown, Missing):
            return {JUDGE: shown}
        return {JUDGE: await self.desk.judge(self.judge, shown, current_scope())}


class ModelJudges(MetricService):
    """The judges of the settings. Votes are kept in memory until `keep_votes` names another place."""

    def __init__(
        self,
        judges: Mapping[str, JudgeSettings],
        settings: JudgingSettings = JudgingSettings(),  # noqa: B008 - frozen
        environment: Mapping[str, str] = os.environ,
        *,
        clock: Callable[[], datetime] = _utc_now,
        client: "JudgeClient | None" = None,
        prices: PriceBook | None = None,
    ) -> None:
        self.judges = dict(judges)
        self._prices = prices
        self._settings, self._environment, self._clock, self._client = settings, environment, clock, client
        self._records: VoteRecords = MemoryVotes()
        self._fresh = False
        self._desk: VotingDesk | None = None

    def keep_votes(self, records: VoteRecords) -> None:
        """Keep votes and count tokens there from now on."""
        self._records = records
        if self._desk is not None:
            self._desk.records = records

    def ask_again(self) -> None:
        """Ask every question from now on, also those that were answered before (`--fresh`)."""
        self._fresh = True
        if self._desk is not None:
            self._desk.fresh = True

    def open(self, metric: str, ask: Ask) -> JudgeExtractor:
        """The extractor of one question; raises AuthorError for a question or a judge that is not valid."""
        del metric
        return self.open_question(read_question(ask))

    def open_question(self, question: JudgeQuestion, max_cost: float | None = None) -> JudgeExtractor:
        """The extractor of one question; raises AuthorError for a judge that cannot be asked within the limits."""
        judge = find_judge(self.judges, question)
        settings = self._settings if max_cost is None else self._settings.limit_cost(max_cost)
        check_prices(judge, settings, self.judges, self._clock(), self._prices or no_prices)
        return JudgeExtractor(judge, self._open_desk())

    def _open_desk(self) -> "VotingDesk":
        if self._desk is None:
            # Whatever speaks HTTP takes a moment to load, which engines without judges should not pay.
            from meruit.judges.client import JudgeClient
            from meruit.judges.desk import VotingDesk

            self._desk = VotingDesk(
                self._client or JudgeClient(self._environment),
                self._settings,
                self._records,
                clock=self._clock,
                prices=self._prices or no_prices,
                fresh=self._fresh,
            )
        return self._desk
