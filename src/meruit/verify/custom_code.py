"""The code that criteria bring along: what the operator lets run, and a reason for what may not."""

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import msgspec

from meruit.metrics.custom import CustomExtractor
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.kinds import Tier
from meruit.model.limits import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT_MS

if TYPE_CHECKING:
    from meruit.sandbox.contract import SandboxResult
    from meruit.sandbox.sandbox import Sandbox


class CustomCode(msgspec.Struct, frozen=True):
    """What of its authors' code an engine runs, and within which limits."""

    timeout_ms: int = DEFAULT_TIMEOUT_MS
    memory_limit_mb: int = DEFAULT_MEMORY_MB
    tiers: frozenset[Tier] = frozenset({Tier.EXPR, Tier.PYTHON})


class Sandboxes:
    """An engine's sandboxes: one a tier, made when first needed and kept as long as the engine."""

    def __init__(self, policy: CustomCode | None) -> None:
        self.policy = policy
        self._made: dict[Tier, Sandbox] = {}
        self._alone: dict[Tier, Sandbox] = {}

    def allows(self, tier: Tier) -> bool:
        """Whether the operator lets code run there."""
        return self.policy is not None and tier in self.policy.tiers

    def extractor(self, code: str, tier: Tier, metrics: tuple[str, ...]) -> CustomExtractor:
        """The code in the sandbox of an allowed tier, within the operator's limits."""
        limits = self.policy or CustomCode()
        return CustomExtractor(code, self._sandbox(tier, limits), metrics, limits.timeout_ms)

    def load(self, code: str, tier: Tier, timeout_ms: int) -> "SandboxResult | None":
        """Load the code in an allowed tier without calling it; returns why it cannot be used, or None."""
        limits = self.policy or CustomCode()
        result = self._sandbox(tier, limits).load_sync(code, min(timeout_ms, limits.timeout_ms))
        return None if result.failure is None else result

    def _sandbox(self, tier: Tier, limits: CustomCode) -> "Sandbox":
        # Most criteria bring no code, and need not wait until the sandbox is loaded.
        from meruit.sandbox.sandbox import Sandbox

        return self._made.get(tier) or self._made.setdefault(tier, Sandbox(tier, limits.memory_limit_mb))

    def in_own_process(self, extractor: CustomExtractor) -> CustomExtractor:
        """The same code in a process of its own: memory lies elsewhere there, which shows."""
        from meruit.sandbox.sandbox import Sandbox

        used = extractor.sandbox
        alone = self._alone.get(used.tier) or self._alone.setdefault(
            used.tier, Sandbox(used.tier, used.memory_limit_mb, max_workers=1)
        )
        return CustomExtractor(extractor.code, alone, extractor.metrics, extractor.timeout_ms)


class CustomCodeFlaw(msgspec.Struct, frozen=True):
    """Why a piece of code is not run."""

    why: Missing
    place: str
    """The key of the criteria that is at fault."""


class CriteriaCode(msgspec.Struct, frozen=True):
    """The code of one set of criteria."""

    extractors: dict[str, CustomExtractor]
    """What may run, by the name of its owner: `custom_metrics[0]`, or `expr[id]`."""
    owner_of: dict[str, str]
    """For each declared metric, who computes it."""
    flaws: dict[str, CustomCodeFlaw]
    """What may not run, by its owner."""


class _CodePiece(msgspec.Struct, frozen=True):
    owner: str
    place: str
    """Where the code stands."""
    chooser: str
    """Where its tier is chosen."""
    code: str
    tier: Tier
    metrics: tuple[str, ...]


def expr_owner(identity: str) -> str:
    """Who computes the expression of the criterion with that id."""
    return f"expr[{identity}]"


def prepare_criteria_code(criteria: SuccessCriteria, sandboxes: Sandboxes, taken: Container[str]) -> CriteriaCode:
    """Make everything ready that the operator lets run; `taken` are the names of his own extractors."""
    own = CriteriaCode(extractors={}, owner_of={}, flaws={})
    for piece in _pieces(criteria):
        if piece.tier is not Tier.EXPR:
            own.owner_of.update(dict.fromkeys(piece.metrics, piece.owner))
        if piece.owner in taken:
            why = f"an extractor of this engine is named {piece.owner!r}; rename it"
            own.flaws[piece.owner] = CustomCodeFlaw(Missing(why, Cause.AUTHOR_ERROR, Fault.SYSTEM), piece.place)
        elif sandboxes.policy is None:
            why = (
                "this engine runs no custom code: its configuration enables no CustomExtractor; "
                "its operator may add extractors.custom"
            )
            own.flaws[piece.owner] = CustomCodeFlaw(_unavailable(why), piece.place)
        elif not sandboxes.allows(piece.tier):
            own.flaws[piece.owner] = CustomCodeFlaw(_unavailable(_explain_barred_tier(piece.tier)), piece.chooser)
        else:
            own.extractors[piece.owner] = sandboxes.extractor(piece.code, piece.tier, piece.metrics)
    return own


def _pieces(criteria: SuccessCriteria) -> Iterator[_CodePiece]:
    for number, custom in enumerate(criteria.custom_metrics):
        owner = f"custom_metrics[{number}]"
        yield _CodePiece(
            owner=owner,
            place=f"{owner}.code",
            chooser=f"{owner}.tier",
            code=custom.code,
            tier=custom.tier,
            metrics=custom.metrics,
        )
    for number, (criterion, identity) in enumerate(zip(criteria.criteria, criteria.ids, strict=True)):
        if criterion.expr is not None:
            place = f"criteria[{number}].expr"
            yield _CodePiece(
                owner=expr_owner(identity),
                place=place,
                chooser=place,
                code=criterion.expr,
                tier=Tier.EXPR,
                metrics=(criterion.subject,),
            )


def _explain_barred_tier(tier: Tier) -> str:
    if tier is Tier.PYTHON_FULL:
        return (
            "the tier python-full is not allowed here; its operator allows it with "
            "`extractors.custom.sandbox.allow_python_full: true` in the configuration, or with --allow-python-full "
            "on the command line"
        )
    return f"the tier {tier} is not allowed here; ask the operator of this engine"


def _unavailable(why: str) -> Missing:
    return Missing(why, Cause.SANDBOX_UNAVAILABLE, Fault.SYSTEM)
