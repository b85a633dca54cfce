"""Every rule asked about one outcome, and what their answers amount to."""

from collections.abc import Collection, Iterator

from meruit.model.governance import Action, Disposition, Dossier, Flag, GovernanceResult, Policy
from meruit.registry import FlagRule, flags

WORST = (Disposition.CLEAR, Disposition.HOLD, Disposition.INVALID)


def govern(
    dossier: Dossier,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    only: Collection[str] | None = None,
) -> GovernanceResult:
    """Judge the plausibility of an outcome by all that is known about it; pure, so anyone can do it again.

    With `only`, those rules are asked and no others that are installed here.
    """
    names = asked_rules(policy).keys() if only is None else only
    asked = [rule for rule in flags if rule.name in names]
    answers = [(rule, _asked(rule, dossier, policy)) for rule in asked]
    found = [flag for _, several in answers if several is not None for flag in several]
    disposition = max((_disposition(flag.action) for flag in found), key=WORST.index, default=Disposition.CLEAR)
    able = sum(several is not None for _, several in answers)
    return GovernanceResult(
        valid=disposition is not Disposition.INVALID,
        flags=[*found],
        disposition=disposition,
        confidence=able / len(asked) if asked else 0.0,
    )


def asked_rules(policy: Policy | None) -> dict[str, str]:
    """The rules that a policy asks, with their versions."""
    return {} if policy is None else {rule.name: rule.version for rule in flags if rule.name not in policy.off}


def together(one: GovernanceResult, other: GovernanceResult) -> GovernanceResult:
    """Two answers about one outcome: all flags, and the worse of the two dispositions."""
    worse = max(one.concluded, other.concluded, key=WORST.index)
    return GovernanceResult(
        valid=worse is not Disposition.INVALID,
        flags=[*one.flags, *other.flags],
        disposition=worse,
        confidence=min(one.confidence, other.confidence),
    )


def _asked(rule: FlagRule, dossier: Dossier, policy: Policy) -> list[Flag] | None:
    suspect = rule.judge(dossier, {**rule.limits, **policy.limits.get(rule.name, {})})
    if suspect is None:
        return None
    return [
        Flag(one.name or rule.name, rule.version, one.action or rule.action, one.metric, one.evidence, one.statistic)
        for one in suspect
    ]


def _disposition(action: Action) -> Disposition:
    match action:
        case Action.INVALIDATE:
            return Disposition.INVALID
        case Action.HOLD | Action.REFUSE:
            return Disposition.HOLD
        case Action.FLAG | Action.WITHHOLD:
            return Disposition.CLEAR


def unknown_rules(policy: Policy) -> Iterator[str]:
    """What a policy says that no rule understands, a sentence each."""
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
