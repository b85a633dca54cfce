"""What judges used for an evaluation, as usage runs of their own accounts: reconciled and priced like all others."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from meruit.evaluations.evaluation import EvaluationRecord
from meruit.judges.settings import JudgeSettings
from meruit.judges.vote_records import TokenTotal
from meruit.model.metering import MeteredRun, MeteredStep
from meruit.model.usage import Tokens
from meruit.usage.meter import parse_attribution_key

FRAMEWORK = "judge"
"""The framework of such runs, by which they are listed."""


def build_judge_runs(
    evaluation: EvaluationRecord, totals: Sequence[TokenTotal], judges: Mapping[str, JudgeSettings], now: datetime
) -> Iterator[MeteredRun]:
    """One run for each judge whose settings name an account; a call without a count leaves its step without one."""
    for total in totals:
        judge = judges.get(total.voter)
        if judge is None or judge.account is None:
            continue
        counted = Tokens(total.input_tokens, total.output_tokens, requests=total.calls)
        step = MeteredStep(
            id=total.model,
            started_at=evaluation.started_at,
            ended_at=now,
            succeeded=True,
            tokens=None if total.unknown_calls else counted,
        )
        yield MeteredRun(
            id=f"{evaluation.id}.{total.voter}",
            framework=FRAMEWORK,
            source=judge.account,
            attribution_key=parse_attribution_key(judge.attribution_key),
            started_at=evaluation.started_at,
            ended_at=now,
            steps=(step,),
            task=evaluation.name,
        )
