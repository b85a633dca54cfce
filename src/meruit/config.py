"""The settings: one typed object, read from a file and the environment."""

import os
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from meruit.documents.authoring import read_model
from meruit.documents.document import parse
from meruit.errors import ConfigError, DocumentError, InvalidAddress, NoteError, Problem
from meruit.files import MAX_FILE_BYTES, display_name, read_bytes
from meruit.judges.settings import JudgeSettings, JudgingSettings, find_judge_faults
from meruit.model.access import AGENT_TRIES, DEFAULT_TENANT, MAX_AGENT_TRIES, AgentScore
from meruit.model.limits import (
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_MS,
    MAX_MEMORY_MB,
    MAX_TIMEOUT_MS,
    MIN_MEMORY_MB,
)
from meruit.model.metering import UsageAccount
from meruit.model.task import TaskSource
from meruit.model.usage import INTERVAL_MIN, Anchor, UsagePolicy
from meruit.store.location import Location

if TYPE_CHECKING:
    from meruit.audit.known_witness import KnownWitness

DEFAULT_PATH = Path("config/outcome-verification.yaml")
PATH_VARIABLE = "MERUIT_CONFIG"
DATA_VARIABLE, DATABASE_VARIABLE = "MERUIT_DATA", "MERUIT_DATABASE_URL"
DEFAULT_DATA = Path("meruit-data")
CUSTOM = "CustomExtractor"


class _Section(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")


class SandboxSettings(_Section):
    """The limits of custom metric code."""

    timeout_ms: int = Field(default=DEFAULT_TIMEOUT_MS, gt=0, le=MAX_TIMEOUT_MS)
    """Milliseconds that one call may take; a longer one is stopped, and its criterion is indeterminate."""
    memory_limit_mb: int = Field(default=DEFAULT_MEMORY_MB, ge=MIN_MEMORY_MB, le=MAX_MEMORY_MB)
    """Megabytes of memory that one call may use."""
    allow_python_full: bool = False
    """Whether criteria may ask for CPython in a jail, which offers more and keeps less out."""


class ExtractorSettings(_Section):
    """One extractor: a built-in class by name, or your own as `package.module:Class`."""

    enabled: bool = True
    """Whether criteria may use its metrics."""
    class_name: str = Field(alias="class", min_length=1)
    """`LatencyExtractor`, `TextQualityExtractor`, `ClassificationExtractor`, `ContainsExtractor`, `EmbeddingExtractor`,
    `CustomExtractor`, or a class of yours."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What the class takes when it is made; `CustomExtractor` takes nothing."""
    sandbox: SandboxSettings | None = None
    """Of `CustomExtractor` only: the limits of custom code."""


class VerificationSettings(_Section):
    """How verification is done."""

    governance_check: bool = True
    """Whether governance rules check each result."""
    store_outcomes: bool = True
    """Whether verified outcomes are recorded; without a settings file, only `--record` does it."""
    max_criteria_per_task: int = Field(default=100, gt=0)
    """The most criteria of one file or work; tasks of benchmarks have a limit of their own."""
    """The most criteria of one task; more are refused."""


class CachingSettings(_Section):
    """How long results are kept."""

    extractor_results_ttl: float = Field(default=300.0, ge=0, allow_inf_nan=False)
    """Seconds that measured values are kept for equal work; 0 keeps none."""


class GovernanceSettings(_Section):
    """Which governance rules run, with which limits; used if `governance_check` is true."""

    off: tuple[str, ...] = ()
    """Rules that are not asked; `meruit governance rules` lists all."""
    limits: dict[str, dict[str, FiniteFloat]] = Field(default_factory=dict)
    """By rule, limits other than its own."""
    url: str | None = None
    """URL of a remote governance that is asked as well."""
    token_variable: str | None = None
    """The environment variable that holds the key sent to it."""
    timeout_s: float = Field(default=10.0, gt=0, le=300, allow_inf_nan=False)
    """Seconds to wait for its answer."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks in which it may be although they are not public."""

    def token(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """The key that is sent to it; raises ConfigError where the variable is not set."""
        if self.token_variable is None:
            return None
        token = environ.get(self.token_variable)
        if not token:
            missing = f"the environment variable {self.token_variable} is not set"
            raise ConfigError("configuration", [Problem("governance.token_variable", missing)])
        return token


class ServiceSettings(_Section):
    """How `meruit serve` treats its callers."""

    requests_per_minute: int = Field(default=60_000, gt=0)
    """Requests of one key; a minute's share may come at once."""
    tenant_requests_per_minute: int = Field(default=240_000, gt=0)
    """Requests of all keys of one tenant; ten seconds' share may come at once."""
    key_mb_per_minute: int = Field(default=384, gt=0, le=1_048_576)
    """Megabytes (2^20 bytes) of bodies of one key; ten seconds' share, at least two bodies, may come at once."""
    tenant_mb_per_minute: int = Field(default=1_536, gt=0, le=1_048_576)
    """Megabytes of bodies of all keys of one tenant."""
    tenant_stored_mb: int | None = Field(default=None, gt=0)
    """Megabytes that one tenant may store: the bodies of its accepted requests; no limit by default."""
    agent_key_stored_mb: int | None = Field(default=10_240, gt=0)
    """Megabytes that one agent's key may store; null for no limit."""
    max_body_bytes: int = Field(default=1_048_576, ge=1_024)
    """Bytes of a request that carries no work; a larger one is refused."""
    max_evidence_bytes: int = Field(default=16 * 1_048_576, ge=1_024, le=MAX_FILE_BYTES)
    """Bytes of a request that carries work."""
    max_agent_bytes: int = Field(default=4 * 1_048_576, ge=1_024, le=MAX_FILE_BYTES)
    """Bytes of a request with an agent's key; parsing a larger one would make others wait."""
    agent_tries: int = Field(default=AGENT_TRIES, strict=True, ge=0, le=MAX_AGENT_TRIES)
    """How often an agent may verify its own work by one set of criteria; the terms of an open contract go first."""
    agent_score: AgentScore = AgentScore.COARSE
    """What agents see of scores without a contract: `coarse` (0, 0.5 or 1), `verdict` (no score) or `exact`."""
    operator_tenant: str = Field(default=DEFAULT_TENANT, min_length=1, max_length=200)
    """The tenant whose keys read `/metrics`, which counts the requests of all tenants."""
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that webhooks may reach although they are not public, such as 10.0.0.0/8."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose X-Forwarded-For is believed."""


class BenchmarkSettings(_Section):
    """What benchmarks may reach beside their playgrounds."""

    sources: dict[str, TaskSource] = Field(default_factory=dict)
    """Systems of one's own by name; a task reads one as `{kind: fhir, at: config:NAME}`."""
    playground_quota_mb: int = Field(default=256, strict=True, ge=1, le=1_048_576)
    """How much each playground may take, earlier versions and checkpoints included."""

    @field_validator("sources")
    @classmethod
    def _require_addresses(cls, sources: dict[str, TaskSource]) -> dict[str, TaskSource]:
        """A configured source has an address of its own."""
        homeless = next((name for name, one in sources.items() if one.at is None or one.at.startswith("config:")), None)
        if homeless is not None:
            raise ValueError(f"the source {homeless!r} needs `at`: the address where it is")
        return sources


class UsagePolicySettings(_Section):
    """When the tokens of a run count as verified."""

    interval_min: FiniteFloat = Field(default=INTERVAL_MIN, strict=True, gt=0, le=7 * 24 * 60)
    """Minutes between two equal observations; fewer than 60 are stamped on every verdict."""
    anchor: Anchor = Anchor.LAST_PAIR
    """From which observation the minutes count: the one before (`last_pair`), or the first equal one (`span`)."""
    min_stable_pairs: int = Field(default=1, strict=True, ge=1, le=100)
    """How many intervals in a row the count must stay the same."""
    totals_only: bool = False
    """Whether only input and output are compared, not their parts."""
    tolerance: int = Field(default=0, strict=True, ge=0)
    """Tokens by which a run's own count may differ from the provider's."""
    anomaly_is_permanent: bool = False
    """Whether a run whose count fell stays unverified until a person accepts it, also when the count recovers."""

    @property
    def policy(self) -> UsagePolicy:
        """As the rules take it."""
        return UsagePolicy(**self.model_dump())


class UsageSettings(_Section):
    """The accounts whose usage APIs report what runs used, and when a count is verified."""

    accounts: dict[str, UsageAccount] = Field(default_factory=dict)
    """By the name that a run's `source` gives."""
    policy: UsagePolicySettings = Field(default_factory=UsagePolicySettings.model_construct)
    """How strict the decision is."""
    tick_min: FiniteFloat = Field(default=5.0, strict=True, gt=0, le=24 * 60)
    """Minutes between two rounds of `meruit reconcile --watch`."""

    def sharers(self, tenant: str, account: str) -> tuple[str, ...]:
        """The tenants whose runs of an account count together with those of this tenant, which is among them."""
        known = self.accounts.get(account)
        return (tenant,) if known is None else known.sharers(tenant)

    @field_validator("accounts")
    @classmethod
    def _reject_duplicate_accounts(cls, accounts: dict[str, UsageAccount]) -> dict[str, UsageAccount]:
        """An account has one name: under two, one run's tokens could be claimed by another as well."""
        names: dict[str, str] = {}
        for name, account in accounts.items():
            # One file may be written in many ways.
            file = os.path.realpath(account.file) if account.file else account.file
            located = account.model_copy(update={"file": file})
            same = names.setdefault(located.model_dump_json(exclude={"options", "shared_by"}), name)
            if same != name:
                raise ValueError(f"{same!r} and {name!r} are one account; name it once")
        return accounts


class WitnessSettings(_Section):
    """A witness that cosigns the checkpoints of the audit log."""

    url: str
    """Where it is: the URL before `/add-checkpoint`."""
    key: str
    """Its public key, as `meruit audit witness key` prints it."""

    @field_validator("url")
    @classmethod
    def _require_url(cls, url: str) -> str:
        # Imported here, and below: few settings name a witness, and every command loads settings.
        from meruit.sources.http import check_base_url

        try:
            return check_base_url(url)
        except InvalidAddress as problem:
            raise ValueError(str(problem)) from None

    @field_validator("key")
    @classmethod
    def _require_key(cls, key: str) -> str:
        from meruit.log.cosignature import WitnessKey

        try:
            return WitnessKey.parse(key).vkey
        except NoteError as problem:
            raise ValueError(str(problem)) from None


class AuditSettings(_Section):
    """Who watches the audit log."""

    witnesses: dict[str, WitnessSettings] = Field(default_factory=dict)
    """Witnesses by a name of your choice; `meruit serve` asks each of them to cosign new checkpoints."""
    quorum: int | None = Field(default=None, ge=1)
    """How many must cosign before a checkpoint counts as witnessed; the default is more than half of them."""

    @field_validator("witnesses")
    @classmethod
    def _reject_duplicate_witnesses(cls, witnesses: dict[str, WitnessSettings]) -> dict[str, WitnessSettings]:
        """One key is one witness, under any name."""
        names: dict[str, str] = {}
        for name, one in witnesses.items():
            same = names.setdefault(one.key.rpartition("+")[2], name)
            if same != name:
                raise ValueError(f"{same!r} and {name!r} have one key; name that witness once")
        return witnesses

    @model_validator(mode="after")
    def _require_enough(self) -> "AuditSettings":
        if self.quorum is not None and self.quorum > len(self.witnesses):
            raise ValueError(f"a quorum of {self.quorum} needs as many witnesses; there are {len(self.witnesses)}")
        return self

    @property
    def needed(self) -> int:
        """How many must cosign; 0 without witnesses."""
        if not self.witnesses:
            return 0
        return len(self.witnesses) // 2 + 1 if self.quorum is None else self.quorum

    @property
    def known_witnesses(self) -> "list[KnownWitness]":
        """As they are asked."""
        from meruit.audit.known_witness import KnownWitness
        from meruit.log.cosignature import WitnessKey

        return [
            KnownWitness(name=name, url=one.url, key=WitnessKey.parse(one.key)) for name, one in self.witnesses.items()
        ]


def _default_extractors() -> dict[str, ExtractorSettings]:
    classes = {
        "latency": "LatencyExtractor",
        "text_quality": "TextQualityExtractor",
        "classification": "ClassificationExtractor",
        "contains": "ContainsExtractor",
        "custom": CUSTOM,
    }
    return {name: ExtractorSettings.model_construct(class_name=found) for name, found in classes.items()}


class Settings(_Section):
    """The keys of `config/outcome-verification.yaml`; an unknown key is refused by its name."""

    extractors: dict[str, ExtractorSettings] = Field(default_factory=_default_extractors)
    """The extractors by a name of your choice; the default is the five built-in ones."""
    verification: VerificationSettings = Field(default_factory=VerificationSettings.model_construct)
    """How verification is done."""
    caching: CachingSettings = Field(default_factory=CachingSettings.model_construct)
    """How long results are kept."""
    governance: GovernanceSettings = Field(default_factory=GovernanceSettings.model_construct)
    """Which governance rules run."""
    service: ServiceSettings = Field(default_factory=ServiceSettings.model_construct)
    """How `meruit serve` treats its callers."""
    benchmarks: BenchmarkSettings = Field(default_factory=BenchmarkSettings.model_construct)
    """What benchmarks may reach."""
    usage: UsageSettings = Field(default_factory=UsageSettings.model_construct)
    """Accounts at providers, and when a count is verified."""
    audit: AuditSettings = Field(default_factory=AuditSettings.model_construct)
    """Who watches the audit log."""
    judges: dict[str, JudgeSettings] = Field(default_factory=dict)
    """Model judges by the name that criteria give: a model behind an endpoint, a panel or a cascade."""
    judging: JudgingSettings = Field(default_factory=JudgingSettings.model_construct)
    """How judges are asked, and what they may use."""

    @field_validator("judges")
    @classmethod
    def _require_known_judges(cls, judges: dict[str, JudgeSettings]) -> dict[str, JudgeSettings]:
        """A panel or a cascade lists judges that exist."""
        faults = find_judge_faults(judges)
        if faults:
            raise ValueError("; ".join(f"{name}: {why}" for name, why in faults))
        return judges

    @field_validator("extractors")
    @classmethod
    def _require_single_custom(cls, extractors: dict[str, ExtractorSettings]) -> dict[str, ExtractorSettings]:
        """There is one sandbox policy, or none."""
        customs = [name for name, chosen in extractors.items() if chosen.enabled and chosen.class_name == CUSTOM]
        if len(customs) > 1:
            raise ValueError(f"{' and '.join(customs)} are both {CUSTOM}; enable one of them")
        return extractors

    @property
    def sandbox(self) -> SandboxSettings | None:
        """The limits of custom metric code; None where none is run."""
        chosen = (entry for entry in self.extractors.values() if entry.enabled and entry.class_name == CUSTOM)
        custom = next(chosen, None)
        return None if custom is None else custom.sandbox or SandboxSettings()

    @property
    def records_outcomes(self) -> bool:
        """Whether a settings file asks to record outcomes; without a file, only an option can ask for it."""
        return "store_outcomes" in self.verification.model_fields_set and self.verification.store_outcomes

    @classmethod
    def load(cls, path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read the given file, else that of MERUIT_CONFIG, else the usual one if it exists, else defaults."""
        chosen = path if path is not None else environ.get(PATH_VARIABLE) or None
        if chosen is None and not os.access(DEFAULT_PATH, os.F_OK):
            # The defaults are valid: the models need not be built for them, which takes longer than a verification.
            return cls.model_construct()
        file = DEFAULT_PATH if chosen is None else chosen
        try:
            text = read_bytes(file)
        except DocumentError as refused:
            raise ConfigError(refused.name, refused.problems) from None
        return cls.parse(text, display_name(file))

    @classmethod
    def parse(cls, text: str | bytes, name: str) -> "Settings":
        """Settings from the text of a file; raises ConfigError with every problem at once."""
        try:
            document = parse(text, name)
        except DocumentError as refused:
            raise ConfigError(name, refused.problems) from None
        settings = read_model(document, cls, error=ConfigError)
        problems = []
        for key, extractor in settings.extractors.items():
            custom = extractor.class_name == CUSTOM
            if extractor.sandbox is not None and not custom:
                line = document.line_of(("extractors", key, "sandbox"))
                problems.append(
                    Problem(where=f"extractors.{key}.sandbox", message=f"only {CUSTOM} runs in a sandbox", line=line)
                )
            if extractor.config and custom:
                line = document.line_of(("extractors", key, "config"))
                wrong = f"{CUSTOM} takes no config; its limits stand under sandbox"
                problems.append(Problem(where=f"extractors.{key}.config", message=wrong, line=line))
        if problems:
            raise ConfigError(name, problems)
        return settings


def location_of(
    data: str | None = None, database_url: str | None = None, environ: Mapping[str, str] = os.environ
) -> Location:
    """Where records are: as given, else as the environment says, else SQLite in the usual folder."""
    folder = data or environ.get(DATA_VARIABLE) or DEFAULT_DATA
    return Location(Path(folder), database_url or environ.get(DATABASE_VARIABLE) or None)
