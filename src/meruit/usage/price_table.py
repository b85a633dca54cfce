"""The prices of models in the table of genai-prices; a model without a certain price has none."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache
from hashlib import sha256
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.model.metering import PriceQuote
from meruit.usage.cost import STANDARD_TIERS, band_name, covers, tier_of

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider

SOURCE = "genai-prices"
BATCH = "batch"
MAX_KNOWN = 4096
"""Model names whose entry is cached; finding one compares every entry of its provider."""
_CLASSES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cached",
    "cache_write_mtok": "cache_write",
    "requests_kcount": "requests",
}
"""The classes of tokens: their names in the table, and in quotes."""
_OUTPUTS = (
    "output_audio_mtok",
    "output_image_mtok",
    "output_video_mtok",
    "output_reasoning_mtok",
    "output_citation_mtok",
)
"""Kinds of output that counts do not separate: a model with a price for one of them has no price for the sum."""
_NAMES = {
    "anthropic_analytics": "anthropic",
    "azure_ai": "azure",
    "bedrock": "aws",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "together_ai": "together",
    "vertex_ai": "google",
    "xai": "x-ai",
}
"""Providers with another name in the table."""
MULTI_PROVIDER_SOURCES = frozenset({"", "litellm", "otel", "files"})
"""Sources with models of any provider: the name of the model decides the provider."""


class ModelPriceTable:
    """One version of the price table."""

    def __init__(self, snapshot: "DataSnapshot", version: str, digest: str) -> None:
        self.snapshot = snapshot
        self.version = version
        self.sha256 = digest
        self._found = lru_cache(maxsize=MAX_KNOWN)(self._find_entry)

    def quotes(self, provider: str, model: str, at: datetime, tier: str = "") -> tuple[PriceQuote, ...]:
        """Quote a model at a time, once for each band of context lengths; empty where the prices are unknown.

        Unknown are: a model that the table does not have or has twice, a tier without a price at that time (the table
        would use the standard price), a time before the first price, and output whose kinds have different prices.
        """
        found = self._found(provider, model)
        prices = None if found is None else found.prices(at, tier)
        if found is None or prices is None:
            return ()
        return tuple(
            PriceQuote(
                source=SOURCE,
                version=self.version,
                table_sha256=self.sha256,
                provider=found.provider.id,
                model=model,
                matched=found.model.id,
                at=at,
                prices=by_class,
                tier=tier_of(tier),
                band=band,
            )
            for band, by_class in _by_band(prices).items()
        )

    def quote(
        self, provider: str, model: str, at: datetime, tier: str = "", *, input_tokens: int | None = None
    ) -> PriceQuote | None:
        """Quote one call; None where the prices are unknown, or depend on a length that is not given."""
        several = self.quotes(provider, model, at, tier)
        fitting = several if input_tokens is None else [one for one in several if covers(one.band, input_tokens)]
        return fitting[0] if len(fitting) == 1 else None

    def _find_entry(self, provider: str, model: str) -> "_PriceEntry | None":
        """Find the entry of a model; None where there is none, or more than one."""
        by_id = {one.id: one for one in self.snapshot.providers}
        whose, _, rest = model.lower().partition("/")
        if provider not in MULTI_PROVIDER_SOURCES:
            owner, name = by_id.get(_NAMES.get(provider, provider)), model
        elif rest and _NAMES.get(whose, whose) in by_id:
            owner, name = by_id[_NAMES.get(whose, whose)], rest
        else:
            owners = [one for one in self.snapshot.providers if one.model_match and one.model_match.is_match(model)]
            owner, name = owners[0] if len(owners) == 1 else None, model
        entry = None if owner is None or not name else owner.find_model(name, all_providers=self.snapshot.providers)
        if owner is None or entry is None:
            return None
        found = _PriceEntry(owner, entry)
        return None if any(one.is_match(name) and found.differs(one) for one in owner.models) else found


class _PriceEntry(msgspec.Struct, frozen=True):
    """An entry of the price table."""

    provider: "Provider"
    model: "ModelInfo"

    def differs(self, other: "ModelInfo") -> bool:
        """Whether another entry has other prices."""
        return (other.prices, other.price_variants) != (self.model.prices, self.model.price_variants)

    def prices(self, at: datetime, tier: str) -> "ModelPrice | None":
        """The prices at a time and tier; None where the table would fall back to other prices."""
        context = None if tier in STANDARD_TIERS else {"processing" if tier == BATCH else "service_tier": tier}
        standard = self.model.prices if isinstance(self.model.prices, list) else ()
        if (standard and not any(_is_active(one, at) for one in standard)) or not self._has_prices_for(context, at):
            return None
        prices = self.model.get_prices(at, context)
        mixed = any(getattr(prices, name) is not None for name in _OUTPUTS)
        return None if mixed or prices.input_mtok is None else prices

    def _has_prices_for(self, context: Mapping[str, str] | None, at: datetime) -> bool:
        """Whether the provider's own entry has prices for this tier; a reseller may not offer it."""
        if context is None:
            return True
        own = any(self.model is one for one in self.provider.models)
        return own and any(one.when == context and _is_active(one, at) for one in self.model.price_variants or ())


# Any: prices and their variants have no common base class for their conditions.
def _is_active(conditional: Any, at: datetime) -> bool:
    return conditional.constraint is None or bool(conditional.constraint.active(at))


def _by_band(prices: "ModelPrice") -> Mapping[str, dict[str, Decimal]]:
    """Split prices by band of context lengths, then by class."""
    # Any: a Decimal, or tiers of prices by input length.
    given: dict[str, Any] = {
        ours: price for theirs, ours in _CLASSES.items() if (price := getattr(prices, theirs)) is not None
    }
    starts = sorted({tier.start for price in given.values() for tier in getattr(price, "tiers", ())})
    if not starts:
        return {"": given}
    ends: Sequence[int | None] = [*starts, None]
    return {
        band_name(above, up_to): {name: _at_length(price, above + 1) for name, price in given.items()}
        for above, up_to in zip([0, *starts], ends, strict=True)
    }


def _at_length(price: Any, input_tokens: int) -> Decimal:
    found: Decimal = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):
        found = tier.price if input_tokens > tier.start else found
    return found


@cache
def load_table() -> ModelPriceTable:
    """Load the table of the installed package; updates by other code in this process are ignored."""
    # The table is large, and most commands need no prices.
    from genai_prices.data import providers
    from genai_prices.data_snapshot import DataSnapshot

    content = resources.files("genai_prices").joinpath("data.py").read_bytes()
    snapshot = DataSnapshot(providers=providers, from_auto_update=False)
    return ModelPriceTable(snapshot, metadata.version("genai-prices"), sha256(content).hexdigest())


def quote(
    provider: str, model: str, at: datetime, tier: str = "", *, input_tokens: int | None = None
) -> PriceQuote | None:
    """Quote one call by the installed table; None where the prices are unknown."""
    return load_table().quote(provider, model, at, tier, input_tokens=input_tokens)
