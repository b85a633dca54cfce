"""Benchmarks as their authors write them: tasks, their starting environment, and what must be true afterwards."""

import base64
import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.environment import ANSWER_SOURCE, SourceKind
from meruit.model.kinds import Aggregation
from meruit.model.threshold import plain_json

SLUG = r"^[a-z0-9][a-z0-9._-]{0,99}$"
PASSED_FROM = "0.9"
"""The score from which a task is passed."""
MAX_TASKS = 1_000
MAX_VERSION = 1_000_000
MAX_ATTACHMENTS = 1_000
MAX_CRITERIA = 500
"""Of one task."""
MAX_TIME_LIMIT_S = 7 * 24 * 3600

STANDARD_SOURCES: Mapping[str, SourceKind] = {
    "ehr": SourceKind.FHIR,
    "outbound": SourceKind.HL7,
    "portal": SourceKind.ROWS,
    "drop": SourceKind.FILES,
    "call": SourceKind.VOICE,
    "clearinghouse": SourceKind.X12,
    "fax": SourceKind.FAX,
    "inbox": SourceKind.MESSAGES,
    "cds": SourceKind.CDS,
}
"""The default names of a playground's systems."""


class Reveal(StrEnum):
    """What the agent sees of a completed run that counts; each level includes those before it."""

    NONE = "none"
    VERDICT = "verdict"
    AXES = "axes"
    CRITERIA = "criteria"
    """Which criteria were met, but not why."""


class TaskSource(BaseModel):
    """A system that a task's checks read: one of the playground, or the author's own at an address."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    kind: SourceKind = Field(description="What it holds.")
    at: str | None = Field(
        default=None,
        min_length=1,
        max_length=2_000,
        description="Where it is, if it is not the playground's: https://…, gs://bucket/prefix, sftp://…, or a folder.",
    )
    token_env: str | None = Field(default=None, min_length=1, description="The environment variable with its token.")
    token_command: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="The command that prints its token."
    )
    types: tuple[str, ...] | None = Field(default=None, min_length=1, description="The resource types that are read.")
    key: str | None = Field(
        default=None, min_length=1, description="The field that names a row, where rows come in lists."
    )
    documents: tuple[str, ...] = Field(default=(), description="Resources that are one document and no rows.")
    shape: Literal["rows", "document"] | None = Field(
        default=None, description="Whether its resources are rows or documents; default: as their content looks."
    )
    key_env: str | None = Field(
        default=None, min_length=1, description="The environment variable with the private key for SFTP."
    )
    known_hosts: str | None = Field(
        default=None, min_length=1, description="The SFTP server's key, as OpenSSH writes it."
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        fields = self.model_dump(exclude_defaults=True, exclude={"kind", "at"})
        if self.at is None and fields:
            raise ValueError("a source of the playground takes only its kind; set `at` for your own system")
        if self.token_env is not None and self.token_command is not None:
            raise ValueError("use either token_env or token_command, not both")
        return self


def _source(written: Any) -> Any:
    return {"kind": written} if isinstance(written, str) else written


def _default_sources() -> dict[str, TaskSource]:
    return {name: TaskSource(kind=kind) for name, kind in STANDARD_SOURCES.items()}


class Task(BaseModel):
    """One task for an agent, in an environment of its own."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    id: str = Field(pattern=SLUG, description="Names the task within its benchmark.")
    benchmark: str | None = Field(
        default=None,
        pattern=SLUG,
        exclude=True,
        description="The benchmark that it belongs to, in a file of its own.",
    )
    title: str = Field(default="", max_length=200, description="For people.")
    instruction: str = Field(min_length=1, max_length=100_000, description="Instructions for the agent.")
    scenario: str = Field(default="", max_length=100_000, description="What authors and judges should know of it.")
    seed: Any = Field(default=None, description="The world at the start: a seed file, several, or the seed itself.")
    facts: dict[str, Any] = Field(default_factory=dict, description="Names that ${…} in criteria may use.")
    sources: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")],
        Annotated[TaskSource, BeforeValidator(_source)],
    ] = Field(
        default_factory=_default_sources,
        max_length=50,
        description="What the checks read.",
        json_schema_extra={"minProperties": 1},
    )
    criteria: tuple[SuccessCriterion, ...] = Field(max_length=MAX_CRITERIA, description="What must be true afterwards.")
    time_limit_s: int = Field(
        default=900, strict=True, ge=1, le=MAX_TIME_LIMIT_S, description="How long the agent may take."
    )
    reveal: Reveal = Field(default=Reveal.AXES, description="What the agent sees of a run that counts.")

    @field_validator("facts", "seed", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return plain_json(value)

    @field_validator("seed")
    @classmethod
    def _check_seed(cls, seed: Any) -> Any:
        several = seed if isinstance(seed, list) else [seed]
        if seed is not None and not all(isinstance(one, str | dict) for one in several):
            raise ValueError("a seed must be the name of a file, the content of such a file, or a list of these")
        return seed

    @field_validator("criteria")
    @classmethod
    def _measurable(cls, criteria: tuple[SuccessCriterion, ...]) -> tuple[SuccessCriterion, ...]:
        for number, criterion in enumerate(criteria):
            if criterion.assertion is None:
                raise ValueError(
                    f"criteria[{number}] has no `assert`; a task is judged by the state of its environment"
                )
        return criteria

    @model_validator(mode="after")
    def _judgeable(self) -> Self:
        if not self.sources:
            raise ValueError(
                "there are no sources, so nothing could be judged; leave them out for the playground's own"
            )
        # Validates ids and weights like every set of criteria.
        _ = self.success_criteria
        if ANSWER_SOURCE in self.sources or any(one.kind is SourceKind.ANSWER for one in self.sources.values()):
            raise ValueError(f"{ANSWER_SOURCE!r} is the agent's own answer, not a source; remove it")
        known = {*self.sources, ANSWER_SOURCE}
        for number, criterion in enumerate(self.criteria):
            wanted = criterion.assertion.settings.get("from") if criterion.assertion is not None else None
            if wanted is not None and wanted not in known:
                raise ValueError(
                    f"criteria[{number}] reads {wanted!r}; the task's sources are {', '.join(sorted(known))}"
                )
        by_kind = Counter(source.kind for source in self.sources.values() if source.at is None)
        twice = next((kind for kind, times in by_kind.items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"a playground has only one {twice} system, but two sources name it")
        return self

    @property
    def seeds(self) -> list[Any]:
        """Its seeds in order: names of files, or inline seeds."""
        return self.seed if isinstance(self.seed, list) else [] if self.seed is None else [self.seed]

    @property
    def success_criteria(self) -> SuccessCriteria:
        """The criteria for the engine: passed from 0.9 on, unless a required one fails."""
        return SuccessCriteria(
            criteria=self.criteria,
            aggregation=Aggregation.WEIGHTED,
            minimum_weighted_score=PASSED_FROM if self.criteria else None,
        )


class Binary(BaseModel):
    """A file that is not text."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    base64: str

    @field_validator("base64")
    @classmethod
    def _decodable(cls, written: str) -> str:
        try:
            base64.b64decode(written, validate=True)
        except ValueError:
            raise ValueError("this is not valid base64") from None
        return written


class Benchmark(BaseModel):
    """A set of tasks under one name and version; it never changes once an agent was measured by it."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    benchmark: str = Field(pattern=SLUG, description="Its name.")
    version: int = Field(default=1, strict=True, ge=1, le=MAX_VERSION, description="Counted up with every change.")
    title: str = Field(default="", max_length=200, description="For people.")
    description: str = Field(default="", max_length=100_000, description="What it measures.")
    tasks: tuple[Task, ...] = Field(
        max_length=MAX_TASKS, description="What agents are asked to do.", json_schema_extra={"minItems": 1}
    )
    attachments: dict[str, str | Binary] = Field(
        default_factory=dict, max_length=MAX_ATTACHMENTS, description="The files that seeds name, by that name."
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        # Checked here, because a list of invalid tasks is not empty.
        if not self.tasks:
            raise ValueError("the benchmark has no tasks; add at least one")
        times = Counter(task.id for task in self.tasks)
        twice = next((name for name, number in times.items() if number > 1), None)
        if twice is not None:
            raise ValueError(f"two tasks share the id {twice!r}")
        stray = next((task for task in self.tasks if task.benchmark not in (None, self.benchmark)), None)
        if stray is not None:
            raise ValueError(f"task {stray.id!r} belongs to {stray.benchmark!r}, not to {self.benchmark!r}")
        return self

    @property
    def name(self) -> str:
        """`slug@version`."""
        return f"{self.benchmark}@{self.version}"

    def attachment(self, name: str) -> bytes:
        """The content of a file that a seed names; raises KeyError."""
        found = self.attachments[name]
        return found.encode() if isinstance(found, str) else base64.b64decode(found.base64)

    def task(self, task_id: str) -> Task | None:
        """The task of that id."""
        return next((task for task in self.tasks if task.id == task_id), None)


_PRACTICE = re.compile(r"(.+)\.practice-[0-9a-f]{12}")
_MAX_PRACTISED = 100 - len(".practice-") - 12


def practice_slug(slug: str, content_digest: str) -> str:
    """The name of a file that is only practised with: it is not published, so its version stays free."""
    return f"{slug[:_MAX_PRACTISED]}.practice-{content_digest[:12]}"


def slug_of_practice(slug: str) -> str | None:
    """The slug of the file that a practice slug stands for; None for a published one."""
    found = _PRACTICE.fullmatch(slug)
    return None if found is None else found[1]


_NAME = re.compile(r"([a-z0-9][a-z0-9._-]{0,99})(?:@([1-9][0-9]{0,6}))?")


def split_name(name: str) -> tuple[str, int | None] | None:
    """Split `slug@version` or `slug`; None for anything else."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], None if found[2] is None else int(found[2]))
