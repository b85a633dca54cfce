"""The composition root: settings in, a working engine out."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from meruit.config import CUSTOM, ExtractorSettings, Settings, location_of
from meruit.documents.sanitize import describe
from meruit.errors import ConfigError, MeruitError, Problem
from meruit.metrics.support.extractor import Family, LazyServices, MetricExtractor, is_extractor_class
from meruit.metrics.support.families import (
    ClassificationExtractor,
    ContainsExtractor,
    LatencyExtractor,
    TextQualityExtractor,
)
from meruit.model.access import DEFAULT_TENANT
from meruit.model.governance import GovernanceClient, Policy
from meruit.model.kinds import Tier
from meruit.model.verdict import VerificationResult
from meruit.model.vote import JUDGE
from meruit.registry import metrics
from meruit.store.location import FILE, Location
from meruit.suggestions import nearest
from meruit.verify.custom_code import CustomCode
from meruit.verify.engine import VerificationEngine, utc_now

if TYPE_CHECKING:
    import httpx

    from meruit.benchmarks.environment import EnvironmentProvider
    from meruit.benchmarks.service import Benchmarks
    from meruit.contracts.client import Market
    from meruit.contracts.marketplace import Marketplace
    from meruit.governance.rule_governance import RuleGovernance
    from meruit.judges.prices import CallPrice
    from meruit.judges.service import ModelJudges
    from meruit.judges.settings import JudgeSettings
    from meruit.outcomes.service import Registrar
    from meruit.playground.environment import PlaygroundProvider
    from meruit.playground.host import Host
    from meruit.store.store import Store
    from meruit.usage.reconcile.reconciler import Reconciler

BUILT_IN: dict[str, type[Family]] = {
    kind.__name__: kind for kind in (LatencyExtractor, TextQualityExtractor, ClassificationExtractor, ContainsExtractor)
}

EMBEDDING, EMBEDDING_METRIC = "EmbeddingExtractor", "embedding_similarity"
"""Named in the settings with the endpoint that it asks, and loaded then; off without."""


def build_engine(
    settings: Settings,
    governance: GovernanceClient | None = None,
    *,
    allow_python_full: bool = False,
    governed: bool = True,
    clock: Callable[[], datetime] = utc_now,
) -> VerificationEngine:
    """The engine that the settings describe; raises ConfigError naming the key that cannot be honoured.

    A `governance` of your own replaces the built-in rules. `allow_python_full` allows that tier of custom code
    regardless of the settings. With `governed=False`, governance is not asked at all.
    """
    checks = governed and settings.verification.governance_check
    extractors = {
        name: _build_extractor(f"extractors.{name}", chosen)
        for name, chosen in settings.extractors.items()
        if chosen.enabled and chosen.class_name != CUSTOM
    }
    covered = {kind.family for kind in BUILT_IN.values()}
    # A family added by a plugin needs no setting.
    added = {family: Family(family) for family in sorted({*metrics.families().values()} - covered)}
    computed = {name for extractor in extractors.values() for name in extractor.supported_metrics()}
    return VerificationEngine(
        added | extractors,
        (governance or _build_rule_governance(settings)) if checks else None,
        cache_ttl_s=settings.caching.extractor_results_ttl,
        max_criteria_per_task=settings.verification.max_criteria_per_task,
        custom=custom_code(settings, allow_python_full=allow_python_full),
        clock=clock,
        switched_off={name: why for name, why in _metrics_switched_off(settings) if name not in computed},
        services=LazyServices({JUDGE: partial(build_judges, settings, clock=clock)}),
    )


def build_judges(settings: Settings, *, clock: Callable[[], datetime] = utc_now) -> "ModelJudges":
    """The model judges that the settings describe, with the price book of usage."""
    # Few criteria ask a judge.
    from meruit.judges.service import ModelJudges

    return ModelJudges(settings.judges, settings.judging, clock=clock, prices=find_judge_price)


def find_judge_price(judge: "JudgeSettings", at: datetime) -> "CallPrice | None":
    """The dearest band of a model's prices; None where the table does not know the model."""
    # The table takes a moment to load, which judges without a limit of cost should not pay.
    from meruit.judges.prices import CallPrice
    from meruit.usage.price_table import load_table

    provider = judge.api if judge.api == "anthropic" or judge.base_url is None else ""
    quotes = [one.prices for one in load_table().quotes(provider, judge.model or "", at)]
    if not quotes or not all({"input", "output"} <= one.keys() for one in quotes):
        return None
    dearest = {name: max(Fraction(one.get(name, 0)) for one in quotes) for name in ("input", "output", "requests")}
    return CallPrice(
        input_per_million=dearest["input"],
        output_per_million=dearest["output"],
        per_thousand_requests=dearest["requests"],
    )


def _metrics_switched_off(settings: Settings) -> Iterator[tuple[str, str]]:
    """The metrics of the built-in extractors, each with what the settings say where it is not computed."""
    for kind, extractor in BUILT_IN.items():
        entries = {key: one for key, one in settings.extractors.items() if one.class_name == kind}
        off = [key for key, one in entries.items() if not one.enabled]
        if not entries:
            why = f"extractors in the settings has no {kind}"
        elif len(off) == len(entries):
            why = f"extractors.{off[0]}.enabled is false in the settings"
        else:
            on = next(key for key, one in entries.items() if one.enabled)
            why = f"extractors.{on}.config in the settings leaves it out"
        yield from ((name, why) for name in extractor().supported_metrics())
    yield EMBEDDING_METRIC, f"extractors in the settings has no enabled {EMBEDDING} with the endpoint that it asks"


def open_store(location: Location, *, make: bool = False) -> "Store":
    """The records there; raises StoreError for a place that holds none, unless they are to be made."""
    # SQLAlchemy takes a moment to load, which commands that keep no records should not pay.
    from meruit.errors import StoreError
    from meruit.store.store import Store

    if not make and location.url is None and not (location.folder / FILE).exists():
        raise StoreError(
            f"{location.folder} holds no records yet; `meruit serve`, `meruit keys create` or `meruit verify --record` "
            "makes them, and --data names another folder"
        )
    return Store.open(location)


def open_records(data: str | Path | None = None, database_url: str | None = None) -> "Store":
    """The store in a data folder or a Postgres database, made when new; close it, or use contextlib.closing."""
    return open_store(location_of(None if data is None else str(data), database_url), make=True)


def build_marketplace(settings: Settings, registrar: "Registrar") -> "Marketplace":
    """The marketplace that the settings describe; raises ConfigError naming an unknown governance rule or limit."""
    from meruit.contracts.marketplace import Marketplace

    policy = _build_policy(settings)
    if not settings.verification.governance_check:
        return Marketplace(registrar, policy=None)
    patience_s = settings.governance.timeout_s
    return Marketplace(registrar, policy=policy, remote=_build_remote(settings), patience_s=patience_s)


def _build_rule_governance(settings: Settings) -> "RuleGovernance":
    """The built-in rules, and the remote service that the settings name."""
    from meruit.governance.rule_governance import RuleGovernance

    return RuleGovernance(_build_policy(settings), _build_remote(settings))


def _build_policy(settings: Settings) -> Policy:
    from meruit.governance.evaluate import unknown_rules

    chosen = settings.governance
    policy = Policy(off=[*chosen.off], limits={name: dict(limits) for name, limits in chosen.limits.items()})
    problems = [Problem("governance", message) for message in unknown_rules(policy)]
    if problems:
        raise ConfigError("configuration", problems)
    return policy


def _build_remote(settings: Settings) -> GovernanceClient | None:
    chosen = settings.governance
    if chosen.url is None:
        return None
    # Whatever speaks HTTP takes a moment to load.
    from meruit.errors import OutboundRefused
    from meruit.governance.remote import RemoteGovernance
    from meruit.sources.http_guard import check_url

    try:
        check_url(chosen.url, chosen.networks)
    except OutboundRefused as refused:
        raise ConfigError("configuration", [Problem("governance.url", str(refused))]) from None
    return RemoteGovernance(
        chosen.url, token=chosen.token(), allowed_networks=chosen.networks, timeout_s=chosen.timeout_s
    )


def build_environments(
    host: "Host", settings: Settings, client: "httpx.AsyncClient", environ: Mapping[str, str], *, for_others: bool
) -> "PlaygroundProvider":
    """The environments of task runs; `for_others` limits them to the sources that the settings name."""
    from meruit.playground.environment import PlaygroundProvider

    configured = settings.benchmarks.sources
    return PlaygroundProvider(
        host, client=client, environment=environ, configured=configured, any_address=not for_others
    )


def build_task_engine(settings: Settings) -> VerificationEngine:
    """The engine that judges task runs."""
    # A task may have more criteria than a contract: its own model says how many.
    from meruit.model.task import MAX_CRITERIA

    unlimited = settings.verification.model_copy(update={"max_criteria_per_task": MAX_CRITERIA})
    return build_engine(settings.model_copy(update={"verification": unlimited}))


def build_benchmarks(settings: Settings, store: "Store", ground: "EnvironmentProvider") -> "Benchmarks":
    """Benchmarks and runs in a store."""
    from meruit.benchmarks.service import Benchmarks
    from meruit.model.task import MAX_CRITERIA
    from meruit.outcomes.service import Registrar

    return Benchmarks(Registrar(build_task_engine(settings), store, max_criteria=MAX_CRITERIA), ground)


@asynccontextmanager
async def build_reconciler(
    settings: Settings, store: "Store", environ: Mapping[str, str]
) -> "AsyncIterator[Reconciler]":
    """What asks the accounts of the settings; raises ConfigError naming the one that cannot be asked."""
    import httpx

    from meruit.registry import usage_sources
    from meruit.usage.providers.support.source_factory import credential_fingerprint, open_source
    from meruit.usage.reconcile.reconciler import Account, Reconciler

    async with httpx.AsyncClient(trust_env=False, follow_redirects=False) as client:
        accounts: dict[str, Account] = {}
        for name, account in settings.usage.accounts.items():
            try:
                source = open_source(account, client=client, environment=environ, clock=store.surroundings.clock)
            except MeruitError as problem:
                raise ConfigError("configuration", [Problem(f"usage.accounts.{name}", str(problem))]) from None
            kind = usage_sources.get(account.provider)
            key = credential_fingerprint(account, environ)
            same = next((one.name for one in accounts.values() if key and one.fingerprint == key), None)
            if same is not None:
                # Under two names, one run's tokens could be claimed by another as well.
                wrong = f"it has the key of {same!r}, and so is the same account; name it once"
                raise ConfigError("configuration", [Problem(f"usage.accounts.{name}", wrong)])
            accounts[name] = Account(
                name,
                account.provider,
                source,
                key,
                self_reported=kind.self_reported,
                is_file=kind.is_file,
                shared_by=account.shared_by,
            )
        yield Reconciler(store, accounts, policy=settings.usage.policy.policy)


def open_market(
    data: str | Path | None = None,
    database_url: str | None = None,
    *,
    settings: Settings | None = None,
    tenant: str = DEFAULT_TENANT,
    by: str = "python",
) -> "Market":
    """Work, contracts and money in a data folder or a Postgres database, made when new; a context manager.

    `by` names who acts: the records and the audit log say so of each operation.
    """
    from meruit.contracts.client import Market
    from meruit.outcomes.service import Registrar

    chosen = settings or Settings()
    store = open_records(data, database_url)
    try:
        registrar = Registrar(build_engine(chosen), store, max_criteria=chosen.verification.max_criteria_per_task)
        return Market(build_marketplace(chosen, registrar), tenant=tenant, by=by)
    except BaseException:
        store.close()
        raise


def custom_code(settings: Settings, *, allow_python_full: bool = False) -> CustomCode | None:
    """What of criteria's own code the settings let run; None when none."""
    sandbox = settings.sandbox
    if sandbox is None:
        return None
    usual = CustomCode(sandbox.timeout_ms, sandbox.memory_limit_mb)
    if sandbox.allow_python_full or allow_python_full:
        return msgspec.structs.replace(usual, tiers=usual.tiers | {Tier.PYTHON_FULL})
    return usual


def _build_extractor(key: str, chosen: ExtractorSettings) -> MetricExtractor:
    kind = _load_extractor_class(key, chosen.class_name)
    try:
        extractor = kind(**chosen.config)
        # Joining refuses all but texts.
        "".join(extractor.supported_metrics())
    except MeruitError as problem:
        raise ConfigError("configuration", [Problem(f"{key}.config", str(problem))]) from None
    except Exception as crash:  # noqa: BLE001 - a stranger's class may raise anything
        wrong = f"{chosen.class_name} cannot be made with this: {describe(crash)}"
        raise ConfigError("configuration", [Problem(f"{key}.config", wrong)]) from None
    return extractor


def _load_extractor_class(key: str, name: str) -> type[MetricExtractor]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name == EMBEDDING:
        from meruit.metrics.embedding_similarity import EmbeddingExtractor

        return EmbeddingExtractor
    module, colon, attribute = name.partition(":")
    if not colon:
        known = nearest(name, [*BUILT_IN, EMBEDDING, CUSTOM])
        problem = f"no extractor class is named {name!r}{known}; your own is written package.module:Class"
        raise ConfigError("configuration", [Problem(f"{key}.class", problem)])
    try:
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as crash:  # noqa: BLE001 - a stranger's module may do anything when loaded
        wrong = f"cannot load {name!r}: {describe(crash)}; is it installed, or its folder in PYTHONPATH?"
        raise ConfigError("configuration", [Problem(f"{key}.class", wrong)]) from None
    if not is_extractor_class(found):
        wrong = f"{name} is not a MetricExtractor: a class with extract and supported_metrics"
        raise ConfigError("configuration", [Problem(f"{key}.class", wrong)])
    # Just checked for the two methods that the engine calls.
    return cast("type[MetricExtractor]", found)


def build_json_schema(which: Literal["criteria", "work", "benchmark", "settings", "result"]) -> dict[str, Any]:
    """The JSON Schema of a kind of file, for editors and programs."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:meruit:{which}:1"}
    match which:
        case "criteria":
            from meruit.verify.schema import criteria_schema

            return head | criteria_schema()
        case "work":
            from meruit.contracts.schema import work_schema

            return head | work_schema()
        case "benchmark":
            # The checks, whose settings are part of it, take a moment to load.
            from meruit.benchmarks.schema import benchmark_schema

            return head | benchmark_schema()
        case "settings":
            return head | Settings.model_json_schema(by_alias=True)
        case "result":
            return head | msgspec.json.schema(VerificationResult)
