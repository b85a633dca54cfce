"""One typed settings object; the sole reader of environment and files."""

import base64
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator

from meruit.documents.authoring import parse_benchmark, parse_criteria, read_model
from meruit.documents.document import parse
from meruit.errors import ConfigError, DocumentError, MeruitError, Problem, UnreadableFile
from meruit.model.criterion import SuccessCriteria
from meruit.model.limits import (
    DEFAULT_MEMORY_MB,
    DEFAULT_TIMEOUT_MS,
    MAX_CODE_BYTES,
    MAX_MEMORY_MB,
    MAX_TIMEOUT_MS,
    MIN_MEMORY_MB,
)
from meruit.model.metering import UsageAccount
from meruit.model.task import Benchmark, TaskSource
from meruit.model.usage import INTERVAL_MIN, Anchor, UsagePolicy
from meruit.store.location import Location

if TYPE_CHECKING:
    from meruit.playground.seed import Seed

DEFAULT_PATH = Path("config/outcome-verification.yaml")
PATH_VARIABLE = "MERUIT_CONFIG"
DATA_VARIABLE, DATABASE_VARIABLE = "MERUIT_DATA", "MERUIT_DATABASE_URL"
DEFAULT_DATA = Path("meruit-data")
CUSTOM = "CustomExtractor"
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""The largest file that is read."""
MAX_KEY_SHOWN = 60


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxSettings(_Section):
    """The limits of custom metric code."""

    timeout_ms: int = Field(default=DEFAULT_TIMEOUT_MS, gt=0, le=MAX_TIMEOUT_MS)
    memory_limit_mb: int = Field(default=DEFAULT_MEMORY_MB, ge=MIN_MEMORY_MB, le=MAX_MEMORY_MB)
    allow_python_full: bool = False
    """Whether criteria may ask for CPython in a jail, which offers more and keeps less out."""


class ExtractorSettings(_Section):
    """One extractor: a built-in class by name, or your own as `package.module:Class`."""

    enabled: bool = True
    class_name: str = Field(alias="class", min_length=1)
    config: dict[str, Any] = Field(default_factory=dict)
    sandbox: SandboxSettings | None = None


class VerificationSettings(_Section):
    """How verification is done."""

    governance_check: bool = True
    store_outcomes: bool = True
    max_criteria_per_task: int = Field(default=10, gt=0)


class CachingSettings(_Section):
    """How long results are kept."""

    extractor_results_ttl: float = Field(default=300.0, ge=0, allow_inf_nan=False)


class GovernanceSettings(_Section):
    """Whom to ask whether outcomes can be believed, and by which limits; asked if `governance_check` says so."""

    off: tuple[str, ...] = ()
    """Rules that are not asked; `meruit governance rules` lists all."""
    limits: dict[str, dict[str, FiniteFloat]] = Field(default_factory=dict)
    """By rule, limits other than its own."""
    url: str | None = None
    """Somebody else's governance, asked as well over HTTP."""
    token_variable: str | None = None
    """The environment variable that holds the key sent to it."""
    timeout_s: float = Field(default=10.0, gt=0, le=300, allow_inf_nan=False)
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
    """Of one key; a minute's share may come at once."""
    max_body_bytes: int = Field(default=1_048_576, ge=1_024)
    max_evidence_bytes: int = Field(default=16 * 1_048_576, ge=1_024, le=MAX_PAYLOAD_BYTES)
    """Of a request that carries work."""
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
    """When a run's tokens count as verified; as specified unless something else is written here."""

    interval_min: FiniteFloat = Field(default=INTERVAL_MIN, strict=True, gt=0, le=7 * 24 * 60)
    """Minutes between two equal looks; fewer than 60 are stamped on every verdict."""
    anchor: Anchor = Anchor.LAST_PAIR
    min_stable_pairs: int = Field(default=1, strict=True, ge=1, le=100)
    totals_only: bool = False
    tolerance: int = Field(default=0, strict=True, ge=0)
    """Tokens by which a run's own count may differ from the provider's."""
    anomaly_is_permanent: bool = False

    @property
    def policy(self) -> UsagePolicy:
        """As the rules take it."""
        return UsagePolicy(**self.model_dump())


class UsageSettings(_Section):
    """Whose usage APIs tell what runs used, and what is believed of it."""

    accounts: dict[str, UsageAccount] = Field(default_factory=dict)
    """By the name that a run's `source` gives."""
    policy: UsagePolicySettings = Field(default_factory=UsagePolicySettings)
    tick_min: FiniteFloat = Field(default=5.0, strict=True, gt=0, le=24 * 60)
    """Minutes between two rounds of `meruit reconcile --watch`."""

    @field_validator("accounts")
    @classmethod
    def _reject_duplicate_accounts(cls, accounts: dict[str, UsageAccount]) -> dict[str, UsageAccount]:
        """An account has one name: under two, one run's tokens could be claimed by another as well."""
        names: dict[str, str] = {}
        for name, account in accounts.items():
            # One file may be written in many ways.
            file = os.path.realpath(account.file) if account.file else account.file
            told = account.model_copy(update={"file": file})
            same = names.setdefault(told.model_dump_json(exclude={"options"}), name)
            if same != name:
                raise ValueError(f"{same!r} and {name!r} are one account; name it once")
        return accounts


def _default_extractors() -> dict[str, ExtractorSettings]:
    classes = {
        "latency": "LatencyExtractor",
        "text_quality": "TextQualityExtractor",
        "classification": "ClassificationExtractor",
        "contains": "ContainsExtractor",
        "custom": CUSTOM,
    }
    return {name: ExtractorSettings.model_validate({"class": found}) for name, found in classes.items()}


class Settings(_Section):
    """What `config/outcome-verification.yaml` may say; every key is honoured, or refused by its name."""

    extractors: dict[str, ExtractorSettings] = Field(default_factory=_default_extractors)
    verification: VerificationSettings = Field(default_factory=VerificationSettings)
    caching: CachingSettings = Field(default_factory=CachingSettings)
    governance: GovernanceSettings = Field(default_factory=GovernanceSettings)
    service: ServiceSettings = Field(default_factory=ServiceSettings)
    benchmarks: BenchmarkSettings = Field(default_factory=BenchmarkSettings)
    usage: UsageSettings = Field(default_factory=UsageSettings)

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
        """Whether a file asks that outcomes be kept; a command without a file keeps none unless it is told to."""
        return "store_outcomes" in self.verification.model_fields_set and self.verification.store_outcomes

    @classmethod
    def load(cls, path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read the given file, else that of MERUIT_CONFIG, else the usual one if it exists, else defaults."""
        chosen = path if path is not None else environ.get(PATH_VARIABLE) or None
        if chosen is None and not os.access(DEFAULT_PATH, os.F_OK):
            return cls()
        file = DEFAULT_PATH if chosen is None else chosen
        try:
            text = read_bytes(file)
        except DocumentError as refused:
            raise ConfigError(refused.name, refused.problems) from None
        return cls.parse(text, _display_name(file))

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
                problems.append(Problem(f"extractors.{key}.sandbox", f"only {CUSTOM} runs in a sandbox", line))
            if extractor.config and custom:
                line = document.line_of(("extractors", key, "config"))
                wrong = f"{CUSTOM} takes no config; its limits stand under sandbox"
                problems.append(Problem(f"extractors.{key}.config", wrong, line))
        if problems:
            raise ConfigError(name, problems)
        return settings


def location_of(
    data: str | None = None, database_url: str | None = None, environ: Mapping[str, str] = os.environ
) -> Location:
    """Where records are: as given, else as the environment says, else SQLite in the usual folder."""
    folder = data or environ.get(DATA_VARIABLE) or DEFAULT_DATA
    return Location(Path(folder), database_url or environ.get(DATABASE_VARIABLE) or None)


def load_criteria(
    path: str | Path, *, known_metrics: list[str] | None = None, max_criteria: int | None = None
) -> SuccessCriteria:
    """Criteria from a YAML or JSON file; raises CriteriaError with every problem, each with its line.

    A custom metric's `code_file` is read from the file's own folder; criteria on standard input have none.
    """
    text = read_bytes(path)
    return parse_criteria(
        text,
        _display_name(path),
        known_metrics=known_metrics,
        max_criteria=max_criteria,
        read_code=None if str(path) == "-" else partial(_read_code_beside, Path(path).parent),
        assertions_too=True,
    )


def load_benchmark(path: str | Path) -> Benchmark:
    """A benchmark from a YAML or JSON file, with the files that its seeds name; DocumentError with every problem."""
    # What reads seeds brings the playground's own readers along.
    from meruit.playground.seed import read_seed

    folder = Path(path).parent

    def gather(seed: Any, attached: Mapping[str, Any]) -> dict[str, Any]:
        files: dict[str, Any] = {}

        def read(name: str) -> bytes:
            known = _attachment_content(attached.get(name))
            if known is not None:
                return known
            content = _read_beside(folder, name)
            try:
                files[name] = content.decode()
            except UnicodeDecodeError:
                files[name] = {"base64": base64.b64encode(content).decode()}
            return content

        read_seed(seed, read)
        return files

    return parse_benchmark(read_bytes(path), _display_name(path), gather=None if str(path) == "-" else gather)


def is_benchmark_file(path: str | Path) -> bool:
    """Whether a file holds a benchmark rather than criteria; what cannot be read twice, or at all, holds none."""
    if not Path(path).is_file():
        return False
    try:
        written = parse(read_bytes(path), _display_name(path)).value
    except DocumentError:
        return False
    return isinstance(written, dict) and "tasks" in written


def load_seed(path: str | Path) -> "Seed":
    """What a playground begins with, from a YAML or JSON file and those beside it; DocumentError with every problem."""
    from meruit.playground.seed import read_seed

    called, folder = _display_name(path), Path(path).parent
    return read_seed(called, lambda name: read_bytes(path) if name == called else _read_beside(folder, name))


# Any: the benchmark has not been validated yet.
def _attachment_content(written: Any) -> bytes | None:
    """The content of a file that a benchmark brings along; None for what is none, of which its model complains."""
    match written:
        case str():
            return written.encode()
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                return b""
        case _:
            return None


def _read_beside(folder: Path, name: str) -> bytes:
    """A file of that folder or below it, and of no other: whoever wrote the benchmark may be a stranger."""
    try:
        home = folder.resolve(strict=True)
        file = (home / name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise MeruitError(f"{name!r} cannot be read: there is no such file beside the benchmark") from None
    if not file.is_relative_to(home):
        raise MeruitError(f"{name!r} lies outside of the benchmark's folder; put it beside the benchmark")
    # Neither a folder nor a pipe that nobody writes to.
    if not file.is_file():
        raise MeruitError(f"{name!r} is no file")
    return read_bytes(file)


def _read_code_beside(folder: Path, name: str) -> str:
    """The code in a file of that folder, and of no other: whoever wrote the criteria may be a stranger."""
    try:
        home = folder.resolve(strict=True)
        file = (home / name).resolve(strict=True)
        if not file.is_relative_to(home):
            raise MeruitError(f"{name!r} lies outside the folder of the criteria; put the file beside them")
        # Neither a folder nor a pipe that nobody writes to.
        if not file.is_file():
            raise MeruitError(f"{name!r} is no file")
        with file.open("rb") as opened:
            content = opened.read(MAX_CODE_BYTES + 1)
        if len(content) > MAX_CODE_BYTES:
            raise MeruitError(f"{name!r} is larger than {MAX_CODE_BYTES // 1024} KiB")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise MeruitError(f"{name!r} is not UTF-8: {problem.reason} at offset {problem.start}") from None
    except (OSError, ValueError, RuntimeError) as problem:
        # On older Pythons a loop of links is a RuntimeError.
        reason = getattr(problem, "strerror", None) or problem
        raise MeruitError(f"{name!r} cannot be read: {reason}") from None


def load_payload(path: str | Path) -> dict[str, Any]:
    """Read a JSON object from a file, or from standard input for `-`; DocumentError says what is wrong."""
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
        # orjson refuses what is no JSON and says where; json keeps every digit of an integer.
        orjson.loads(text)
        payload: Any = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except UnicodeDecodeError as problem:
        raise DocumentError(_display_name(path), [Problem("", f"not UTF-8: {problem}")]) from None
    except (ValueError, RecursionError) as problem:
        wrong = f"not JSON: {problem}" if content.strip() else "the file is empty"
        raise DocumentError(_display_name(path), [Problem("", wrong)]) from None
    if not isinstance(payload, dict):
        hint = ' such as {"text": "…"}' if isinstance(payload, str) else ""
        wrong = f"expected a JSON object{hint}, got {_KINDS[type(payload)]}"
        raise DocumentError(_display_name(path), [Problem("", wrong)])
    return payload


_KINDS = {
    str: "a text",
    list: "a list",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; two of one name would read differently to different readers."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:MAX_KEY_SHOWN]!r} stands twice in one object")
    return members


def read_bytes(path: str | Path) -> bytes:
    """A file's content, or standard input's for `-`; raises DocumentError when it cannot be read."""
    try:
        if str(path) == "-":
            # Standard input that was closed before we started is None.
            content = _read_up_to_limit(sys.stdin.buffer) if sys.stdin is not None else b""
        else:
            with Path(path).open("rb") as file:
                content = _read_up_to_limit(file)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UnreadableFile(_display_name(path), [Problem("", f"cannot be read: {reason}")]) from None
    if len(content) > MAX_PAYLOAD_BYTES:
        raise DocumentError(_display_name(path), [Problem("", f"more than {MAX_PAYLOAD_BYTES // 2**20} MiB")])
    return content


def _read_up_to_limit(file: BinaryIO) -> bytes:
    """Enough to see that it is too much: some files, such as /dev/zero, have no end."""
    return file.read(MAX_PAYLOAD_BYTES + 1)


def _display_name(path: str | Path) -> str:
    """What a file is called in messages."""
    name = str(path) if path != "" else "''"
    return "standard input" if name == "-" else name
