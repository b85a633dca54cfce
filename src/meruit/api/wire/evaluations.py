"""Requests and replies of `/v1/evaluations`."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.wire.common import PRINTABLE, Body, CriteriaReference, Label, Payload, anchor_pattern
from meruit.evaluations.compare import MOST_COMPARED, EvaluationComparison
from meruit.evaluations.evaluation import (
    MAX_NAME,
    MAX_TAGS,
    Case,
    CaseError,
    CaseSummary,
    EvaluationRecord,
    EvaluationStatus,
)
from meruit.evaluations.summary import EvaluationSummary, Rate
from meruit.judges.prefer import DEFAULT_QUESTION
from meruit.judges.vote_records import TokenTotal
from meruit.log.segment import MAX_CASES
from meruit.model.access import AgentScore, show_score
from meruit.model.evidence import Fault
from meruit.model.record import Record
from meruit.model.verdict import Verdict
from meruit.web.parameters import PathParameter, QueryParameter

MAX_VALUES = 50
"""Most values of one filter."""
MAX_SEARCH = 200
MAX_QUESTION = 4_000
"""Characters of a question to a judge."""
AGENT_TAG = "agent_id"
"""The tag of an evaluation that lets a key of that agent see how it ended."""

EvaluationPath = Annotated[
    str,
    PathParameter(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE, description="An id, or a name without `/`."),
]
CasePath = Annotated[str, PathParameter(max_length=MAX_NAME + 1, description="The id of a case.")]
RepeatQuery = Annotated[int, QueryParameter(ge=0, le=1_000_000, required=False, description="Which of several tries.")]
CaseCursor = Annotated[
    int,
    QueryParameter(ge=0, le=2**53, required=False, description="Cursor: pass the `next` value of the previous page."),
]
EvaluationCursor = Annotated[
    str | None,
    QueryParameter(
        pattern=anchor_pattern("ev_[0-9a-f]{34}"),
        required=False,
        description="Cursor: pass the `next` value of the previous page.",
    ),
]
TextQuery = Annotated[str | None, QueryParameter(min_length=1, max_length=MAX_SEARCH, required=False)]
TagQuery = Annotated[
    list[str] | None,
    QueryParameter(
        name="tag", max_items=MAX_VALUES, required=False, description="`NAME=VALUE`; of one name, one value must hold."
    ),
]
StatusQuery = Annotated[
    list[EvaluationStatus] | None, QueryParameter(name="status", max_items=MAX_VALUES, required=False)
]
CriterionQuery = Annotated[
    list[str] | None,
    QueryParameter(
        name="criterion",
        max_items=MAX_VALUES,
        required=False,
        description="The id of a criterion: only cases that do not meet it, or one of several.",
    ),
]
VerdictQuery = Annotated[list[Verdict] | None, QueryParameter(name="verdict", max_items=MAX_VALUES, required=False)]
FaultQuery = Annotated[
    list[Fault] | None,
    QueryParameter(
        name="fault",
        max_items=MAX_VALUES,
        required=False,
        description="Who is responsible for what is not met or not measured.",
    ),
]
GroupQuery = Annotated[list[str] | None, QueryParameter(name="group", max_items=MAX_VALUES, required=False)]
CaseIdQuery = Annotated[list[str] | None, QueryParameter(name="case", max_items=MAX_VALUES, required=False)]
WithQuery = Annotated[
    list[str],
    QueryParameter(
        name="with",
        min_items=1,
        max_items=MOST_COMPARED - 1,
        description="Ids or names of one to three others.",
    ),
]

Tags = Annotated[dict[Label, Label], Meta(max_length=MAX_TAGS)]


class StartRequest(Body, frozen=True):
    """An evaluation to begin, or to go on with."""

    name: Label
    criteria: CriteriaReference | dict[str, Any]
    """Registered criteria by name, or criteria as in a file."""
    tags: Tags = msgspec.field(default_factory=dict)
    """Model, prompt, version of the code. A key of the agent in `agent_id` may see how it ended."""
    dataset_digest: Annotated[str, Meta(pattern=anchor_pattern("[0-9a-f]{64}"))] | None = None
    planned: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """How many cases there will be."""


class CaseBody(Body, frozen=True):
    """One case: the work, and what it belongs to."""

    id: Label
    input: Payload = msgspec.field(default_factory=dict)
    output: Payload | None = None
    """Null where there is none; the case is inconclusive then."""
    metadata: Payload = msgspec.field(default_factory=dict)
    group: Label | None = None
    tags: Tags = msgspec.field(default_factory=dict)
    repeat: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    claimed: Label | None = None
    """The verdict of the tool that it comes from."""
    error: CaseError | None = None
    """Why the output is missing."""
    error_message: Annotated[str, Meta(max_length=2_000)] = ""
    cost_micros: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """What making the output cost, in millionths of a dollar."""

    def to_case(self) -> Case:
        """The case, as the evaluator takes it."""
        return Case(**{name: getattr(self, name) for name in Case.__struct_fields__})


class CasesRequest(Body, frozen=True):
    """Cases that are judged and recorded together."""

    cases: Annotated[list[CaseBody], Meta(min_length=1, max_length=MAX_CASES)]


class CaseVerdict(Record, frozen=True):
    """How one case ended."""

    case_id: str
    repeat: int
    outcome_id: str
    verdict: Verdict
    success: bool
    score: float | None
    """Rounded down to 0, 0.5 or 1 for agents, or null; the service's setting `agent_score` says which."""


class CasesReply(Record, frozen=True):
    """What was recorded."""

    segment: int | None
    """The number of the segment; null where all cases were recorded before."""
    recorded: list[CaseVerdict]
    known: list[str]
    """Cases that were recorded before; nothing was done about them."""


class EvaluationPage(Record, frozen=True):
    """Evaluations, newest first."""

    evaluations: list[EvaluationRecord]
    next: str | None
    """Pass it as `before` to get the next page; null on the last page."""


class EvaluationReply(Record, frozen=True):
    """An evaluation with its numbers."""

    evaluation: EvaluationRecord
    summary: EvaluationSummary
    judge_tokens: list[TokenTotal] = msgspec.field(default_factory=list)
    """What model judges used for it, by model."""


class CaseList(Record, frozen=True):
    """Cases in their order."""

    cases: list[CaseSummary]
    next: int | None
    """Pass it as `after` to get the next page; null on the last page."""


class ComparisonReply(Record, frozen=True):
    """Each of the others, compared with the first."""

    comparisons: list[EvaluationComparison]


class PreferenceRequest(Body, frozen=True):
    """Other evaluations, and the judge that is asked which output of each case is better."""

    others: Annotated[list[Label], Meta(min_length=1, max_length=MOST_COMPARED - 1)]
    """Ids or names of one to three others."""
    judge: Label
    """The name of a judge in the settings of the service."""
    question: Annotated[str, Meta(min_length=1, max_length=MAX_QUESTION)] = DEFAULT_QUESTION
    rubric: Annotated[str, Meta(max_length=MAX_QUESTION)] = ""
    """How to decide."""
    max_judge_tokens: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Ask nothing more once so many tokens were used for this comparison."""
    max_judge_cost: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """Ask nothing that could cost more, in US dollars; the price of the judge's model must be known."""


class AgentEvaluation(Record, frozen=True):
    """What an agent sees of an evaluation of its work."""

    id: str
    name: str
    status: EvaluationStatus
    cases: int
    started_at: datetime
    ended_at: datetime | None


class AgentEvaluationPage(Record, frozen=True):
    """The evaluations of an agent's work, newest first."""

    evaluations: list[AgentEvaluation]
    next: str | None


class AgentEvaluationReply(Record, frozen=True):
    """How an evaluation of the agent's work ended, without its criteria."""

    evaluation: AgentEvaluation
    overall: Rate


class AgentCaseList(Record, frozen=True):
    """What an agent sees of the cases of its work."""

    cases: list[CaseVerdict]
    next: int | None


def for_agent(found: EvaluationRecord) -> AgentEvaluation:
    """What an agent may see of an evaluation."""
    return AgentEvaluation(
        id=found.id,
        name=found.name,
        status=found.status,
        cases=found.cases,
        started_at=found.started_at,
        ended_at=found.ended_at,
    )


def case_verdict(one: CaseSummary, shown: AgentScore = AgentScore.EXACT) -> CaseVerdict:
    """How one case ended."""
    return CaseVerdict(
        case_id=one.case_id,
        repeat=one.repeat,
        outcome_id=one.outcome_id,
        verdict=one.verdict,
        success=one.success,
        score=show_score(one.score, shown),
    )
