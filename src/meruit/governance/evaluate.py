"""Apply the governance rules to the dossier of one outcome."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from meruit.errors import Problem
from meruit.governance.history import WINDOW
from meruit.model.governance import (
    UNAVAILABLE,
    WORST,
    Action,
    Dealings,
    Disposition,
    Dossier,
    Flag,
    GovernanceResult,
    Policy,
    Suspicion,
    disposition_of,
)
from meruit.model.limits import MAX_EXPRESSION
from meruit.model.outcome import MAX_LABEL
from meruit.model.text import escape_control_characters
from meruit.registry import FlagRule, flags

MAX_COUNT = 10**9
MAX_MICROS = 10**15
MAX_NUMBER = 1e15
"""The largest number that a dossier may hold."""
MAX_ENTRIES = 1_000
MAX_KEY_SHOWN = 60
_MOST: Mapping[str, int] = {"bonus_micros": MAX_MICROS}
_LONGEST: Mapping[str, int] = {"metric": MAX_EXPRESSION, "criterion_id": MAX_EXPRESSION}
"""A metric or criterion without a name is identified by its expression."""
_WINDOWS = frozenset({"margins", "accuracies"})
_COUNTS = frozenset(
    {
        *("canaries", "output_chars", "n", "bonus_micros", "latency_mismatches", "near_duplicates"),
        *("near_tries", "near_tries_failed"),
        *Dealings.__struct_fields__,
    }
)
_NO_MORE_THAN = (
    *(("pair", "agent"), ("pair", "consumer"), ("pair_bonus", "agent_bonus"), ("pair_bonus", "consumer_bonus")),
    *((f"{who}_bonus", who) for who in ("pair", "agent", "consumer", "market")),
)


class _RuleAnswer(msgspec.Struct, frozen=True):
    flags: list[Flag]
    able: bool
    """Whether the rule had what it needs."""


def govern(
    dossier: Dossier,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    only: Collection[str] | None = None,
) -> GovernanceResult:
    """Judge whether an outcome is plausible; pure, so an auditor can repeat it.

    With `only`, apply just those rules.
    """
    names = rule_versions(policy).keys() if only is None else only
    return apply_rules([one for one in prepare_rules(policy, off=()) if one.rule.name in names], dossier)


class PreparedRule(msgspec.Struct, frozen=True):
    """A rule with the limits in force."""

    rule: FlagRule
    limits: Mapping[str, float]


def prepare_rules(policy: Policy, off: Collection[str] | None = None) -> tuple[PreparedRule, ...]:
    """The rules that a policy applies, with their limits; `off` replaces the policy's own list."""
    without = policy.off if off is None else off
    return tuple(
        PreparedRule(rule, {**rule.limits, **policy.limits.get(rule.name, {})})
        for rule in flags
        if rule.name not in without
    )


def apply_rules(rules: Iterable[PreparedRule], dossier: Dossier) -> GovernanceResult:
    """What the rules find in a dossier, and what follows."""
    answers = [_ask_rule(one, dossier) for one in rules]
    found = [flag for answer in answers for flag in answer.flags]
    disposition = max((disposition_of(flag.action) for flag in found), key=WORST.index, default=Disposition.CLEAR)
    return GovernanceResult(
        valid=disposition is not Disposition.INVALID,
        flags=[*found],
        disposition=disposition,
        confidence=sum(answer.able for answer in answers) / len(answers) if answers else 0.0,
    )


def rule_versions(policy: Policy | None) -> dict[str, str]:
    """The rules that a policy applies, with their versions."""
    return {} if policy is None else {rule.name: rule.version for rule in flags if rule.name not in policy.off}


def combine_results(one: GovernanceResult, other: GovernanceResult) -> GovernanceResult:
    """Combine two results on one outcome: all flags, and the worse disposition."""
    worse = max(one.conclusion, other.conclusion, key=WORST.index)
    return GovernanceResult(
        valid=worse is not Disposition.INVALID,
        flags=[*one.flags, *other.flags],
        disposition=worse,
        confidence=min(one.confidence, other.confidence),
    )


_NOT_ABLE, _NOTHING_FOUND = _RuleAnswer([], able=False), _RuleAnswer([], able=True)


def _ask_rule(prepared: PreparedRule, dossier: Dossier) -> _RuleAnswer:
    rule = prepared.rule
    try:
        suspect = rule.judge(dossier, prepared.limits)
        if not suspect:
            return _NOT_ABLE if suspect is None else _NOTHING_FOUND
        # Encoding and decoding each flag makes sure that it can be recorded.
        return _RuleAnswer([Flag.from_json(_flag(rule, one).to_json()) for one in suspect], able=True)
    except Exception as problem:  # noqa: BLE001 - a plugin may raise anything; the outcome is held and the other rules apply
        evidence = {"rule": rule.name, "error": type(problem).__name__}
        return _RuleAnswer([Flag(UNAVAILABLE, rule.version, Action.HOLD, evidence=evidence)], able=False)


def _flag(rule: FlagRule, one: Suspicion) -> Flag:
    return Flag(
        rule=one.name or rule.name,
        version=rule.version,
        action=one.action or rule.action,
        metric=one.metric,
        evidence=one.evidence,
        statistic=one.statistic,
    )


def find_excesses(dossier: Dossier) -> Iterator[Problem]:
    """Values of a dossier from a client that are too large or contradict each other."""
    for where, name, value in _parts(dossier):
        why = _too_much(name, value)
        if why is not None:
            yield Problem(where, why)
    if dossier.history.near_tries_failed > dossier.history.near_tries:
        yield Problem("history.near_tries_failed", "is more than near_tries")
    dealings = dossier.history.dealings
    for part, whole in _NO_MORE_THAN:
        if getattr(dealings, part) > getattr(dealings, whole):
            yield Problem(f"history.dealings.{part}", f"is more than {whole}")


# Any: a dossier holds structs, lists and dicts of plain values.
def _parts(value: Any, where: str = "", name: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every value inside, with its path and the name of its field; entries of a dict or list have no name."""
    if where:
        yield where, name, value
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _parts(getattr(value, field), f"{where}.{field}".lstrip("."), field)
    elif isinstance(value, list):
        for number, one in enumerate(value[:MAX_ENTRIES]):
            yield from _parts(one, f"{where}[{number}]")
    elif isinstance(value, dict):
        for key, one in islice(value.items(), MAX_ENTRIES):
            place = f"{where}.{escape_control_characters(key[:MAX_KEY_SHOWN])}"
            yield place, "metric", key
            yield from _parts(one, place)


def _too_much(name: str, value: Any) -> str | None:
    """Why a value is too large; None where it is not."""
    if isinstance(value, str):
        most = _LONGEST.get(name, MAX_LABEL)
        return f"has more than {most:,} characters" if len(value) > most else None
    if isinstance(value, list | dict):
        most = WINDOW if name in _WINDOWS else MAX_ENTRIES
        return f"holds more than {most:,} entries" if len(value) > most else None
    if not isinstance(value, int | float):
        return None
    if name in _COUNTS:
        most = _MOST.get(name, MAX_COUNT)
        return None if 0 <= value <= most else f"is not a count from 0 to {most:,}"
    return None if abs(value) <= MAX_NUMBER else f"is not a number from {-MAX_NUMBER:g} to {MAX_NUMBER:g}"


def unknown_rules(policy: Policy) -> Iterator[str]:
    """The rules and limits of a policy that do not exist, one message each."""
    for name in policy.off:
        if flags.find(name) is None:
            yield f"no rule is named {name!r}"
    for name, limits in policy.limits.items():
        rule = flags.find(name)
        if rule is None:
            yield f"no rule is named {name!r}"
            continue
        for limit in limits.keys() - rule.limits.keys():
            yield f"the rule {name} has no limit {limit!r}; it has {', '.join(sorted(rule.limits)) or 'none'}"
