"""One typed settings object; the sole reader of environment and files."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from meruit.engine.authoring import parse_criteria, read_model
from meruit.engine.documents import parse
from meruit.model.criterion import SuccessCriteria
from meruit.model.errors import ConfigError, DocumentError, Problem

DEFAULT_PATH = Path("config/outcome-verification.yaml")
PATH_VARIABLE = "MERUIT_CONFIG"
CUSTOM = "CustomExtractor"
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""The largest file of input, output or metadata that is read."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxSettings(_Section):
    """The limits of custom metric code."""

    timeout_ms: int = Field(default=5_000, gt=0)
    memory_limit_mb: int = Field(default=256, gt=0)


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


def _specified_extractors() -> dict[str, ExtractorSettings]:
    classes = {
        "latency": "LatencyExtractor",
        "text_quality": "TextQualityExtractor",
        "classification": "ClassificationExtractor",
        "contains": "ContainsExtractor",
    }
    return {name: ExtractorSettings.model_validate({"class": found}) for name, found in classes.items()}


class Settings(_Section):
    """What `config/outcome-verification.yaml` may say; every key is honoured, or refused by its name."""

    extractors: dict[str, ExtractorSettings] = Field(default_factory=_specified_extractors)
    verification: VerificationSettings = Field(default_factory=VerificationSettings)
    caching: CachingSettings = Field(default_factory=CachingSettings)

    @classmethod
    def load(cls, path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read the given file, else the one MERUIT_CONFIG names, else the usual one if it exists, else defaults."""
        chosen = path or environ.get(PATH_VARIABLE)
        if not chosen and not DEFAULT_PATH.is_file():
            return cls()
        file = Path(chosen) if chosen else DEFAULT_PATH
        return cls.parse(read_bytes(file), str(file))

    @classmethod
    def parse(cls, text: str | bytes, name: str) -> "Settings":
        """Settings from the text of a file; raises ConfigError with every problem at once."""
        document = parse(text, name)
        settings = read_model(document, cls, error=ConfigError)
        problems = [
            Problem(f"extractors.{key}.sandbox", f"only {CUSTOM} runs in a sandbox", document.line_of(("extractors", key)))
            for key, extractor in settings.extractors.items()
            if extractor.sandbox is not None and extractor.class_name != CUSTOM
        ]
        if problems:
            raise ConfigError(name, problems)
        return settings

    def notices(self) -> Iterator[str]:
        """What the file asks for and this version does not do, by the key's name."""
        if "store_outcomes" in self.verification.model_fields_set and self.verification.store_outcomes:
            yield "verification.store_outcomes: this version keeps no outcomes; save the result of --json yourself"
        for name, extractor in self.extractors.items():
            if extractor.enabled and extractor.class_name == CUSTOM:
                yield f"extractors.{name}: this version runs no custom metric code; such metrics are unknown to it"


def load_criteria(
    path: str | Path, *, known_metrics: list[str] | None = None, max_criteria: int | None = None
) -> SuccessCriteria:
    """Criteria from a YAML or JSON file; raises CriteriaError with every problem, each with its line."""
    return parse_criteria(read_bytes(path), str(path), known_metrics=known_metrics, max_criteria=max_criteria)


def load_payload(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file, or from standard input for `-`; raises DocumentError saying what is wrong."""
    content = read_bytes(path)
    if len(content) > MAX_PAYLOAD_BYTES:
        raise DocumentError(str(path), [Problem("", f"more than {MAX_PAYLOAD_BYTES // 2**20} MiB")])
    try:
        payload: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise DocumentError(str(path), [Problem("", f"not JSON: {problem}")]) from None
    if not isinstance(payload, dict):
        hint = ' such as {"text": "…"}' if isinstance(payload, str) else ""
        raise DocumentError(str(path), [Problem("", f"expected a JSON object{hint}, got {type(payload).__name__}")])
    return payload


def read_bytes(path: str | Path) -> bytes:
    """A file's content, or standard input's for `-`; raises DocumentError when it cannot be read."""
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise DocumentError(str(path), [Problem("", f"cannot be read: {problem.strerror or problem}")]) from None
