"""Judges as an operator writes them: a model behind an endpoint, a panel of models, or a cascade."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from meruit.errors import InvalidAddress
from meruit.model.criterion import Amount

MAX_MEMBERS = 15
DEFAULT_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}


class JudgePrices(BaseModel):
    """What a model costs."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    input_per_million: Amount
    """US dollars for a million tokens of questions."""
    output_per_million: Amount
    """US dollars for a million tokens of answers, reasoning included."""


class JudgeSettings(BaseModel):
    """One judge: a `model` behind an endpoint, a `panel` of models, or a `cascade` of judges."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", protected_namespaces=())

    api: Literal["openai", "anthropic"] = "openai"
    """The API of the endpoint: `openai` (any compatible endpoint) or `anthropic` (messages)."""
    base_url: str | None = None
    """The address of the endpoint, as `https://api.openai.com/v1`; the provider's own when not given."""
    model: str | None = Field(default=None, min_length=1)
    """The model's name, as the endpoint takes it."""
    key_variable: str | None = Field(default=None, min_length=1)
    """The environment variable that holds the key."""
    temperature: float | None = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    """How much answers vary; null leaves it to the endpoint."""
    seed: int | None = Field(default=None, ge=0, strict=True)
    """The seed of the first vote, for endpoints that take one; each further vote adds 1."""
    max_tokens: int = Field(default=1_024, ge=16, le=100_000, strict=True)
    """Tokens that one answer may have."""
    answer: Literal["json_schema", "tool"] = "json_schema"
    """How an OpenAI-compatible endpoint is asked for a structured answer; Anthropic's is always a tool call."""
    timeout_s: float = Field(default=60.0, gt=0, le=600, allow_inf_nan=False)
    """Seconds that one answer may take."""
    retries: int = Field(default=2, ge=0, le=10, strict=True)
    """How often a request is repeated after a busy or broken endpoint; a timeout is not repeated."""
    prices: JudgePrices | None = None
    """The model's prices; by default those of the price book that usage has."""
    max_cost_per_evaluation: Amount | None = None
    """US dollars that this judge may cost for one evaluation; no limit when not given."""
    account: str | None = Field(default=None, min_length=1)
    """The account under `usage.accounts` that its tokens are reconciled with, as one usage run per evaluation."""
    attribution_key: str = "window"
    """Where that account counts them: `key:ID`, `project:ID`, `session:ID`, or `window`, by time alone."""
    panel: tuple[str, ...] = Field(default=(), max_length=MAX_MEMBERS)
    """Judges with a model that vote in turn."""
    cascade: tuple[str, ...] = Field(default=(), max_length=MAX_MEMBERS)
    """Judges that are asked one after another, each only about what the one before left open."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        given = [name for name in ("model", "panel", "cascade") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"a judge has one of model, panel and cascade, not {' and '.join(given) or 'none'}")
        if not self.model:
            stray = sorted(self.model_fields_set - {"panel", "cascade"})
            if stray:
                raise ValueError(f"{', '.join(stray)}: settings of a model; put them on the judges that are listed")
        if self.base_url is not None:
            # Whatever speaks HTTP takes a moment to load.
            from meruit.sources.http import check_base_url

            try:
                check_base_url(self.base_url)
            except InvalidAddress as problem:
                raise ValueError(f"base_url: {problem}") from None
        return self

    @property
    def url(self) -> str:
        """The address of the endpoint, without a slash at the end."""
        return (self.base_url or DEFAULT_URLS[self.api]).rstrip("/")


class JudgingSettings(BaseModel):
    """How judges are asked."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    concurrency: int = Field(default=8, ge=1, le=256, strict=True)
    """Questions that are asked at the same time."""
    max_tokens_per_evaluation: int | None = Field(default=None, ge=0, strict=True)
    """Tokens that judges may use for one evaluation, questions and answers together; no limit when not given."""
    max_tokens_per_day: int | None = Field(default=None, ge=0, strict=True)
    """Tokens that judges may use in one day (UTC) for one tenant; no limit when not given."""
    max_cost_per_evaluation: Amount | None = None
    """US dollars that judges may cost for one evaluation; no limit when not given."""
    max_cost_per_day: Amount | None = None
    """US dollars that judges may cost in one day (UTC) for one tenant; no limit when not given."""

    def limit_cost(self, dollars: float) -> "JudgingSettings":
        """The same with at most this cost for one evaluation."""
        least = dollars if self.max_cost_per_evaluation is None else min(dollars, self.max_cost_per_evaluation)
        return JudgingSettings.model_validate({**self.model_dump(), "max_cost_per_evaluation": least})


def find_judge_faults(judges: Mapping[str, JudgeSettings]) -> list[tuple[str, str]]:
    """What is wrong between judges, each with the judge's name."""
    faults = []
    for name, one in judges.items():
        for member in (*one.panel, *one.cascade):
            found = judges.get(member)
            if found is None:
                faults.append((name, f"it names {member!r}, which is not among the judges"))
            elif one.panel and found.model is None:
                faults.append((name, f"its panel names {member!r}, which has no model of its own"))
            elif one.cascade and found.cascade:
                faults.append((name, f"its cascade names {member!r}, which is a cascade; list its steps instead"))
    return faults
