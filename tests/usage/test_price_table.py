"""Prices out of the table: what it says for sure, and nothing where it would guess."""

import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from hashlib import sha256
from pathlib import Path

import genai_prices
import pytest
from genai_prices import types
from genai_prices.data_snapshot import DataSnapshot
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.metering import PriceQuote
from meruit.model.usage import Tokens
from meruit.usage.cost import cost_bounds
from meruit.usage.price_table import SOURCE, ModelPriceTable, load_table, quote

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def priced(**by_key: object) -> types.ModelPrice:
    return types.ModelPrice(**{name: _price(value) for name, value in by_key.items()})


def _price(value: object) -> Decimal | types.TieredPrices:
    if isinstance(value, types.TieredPrices):
        return value
    return Decimal(str(value))


def stepped(base: str, *steps: tuple[int, str]) -> types.TieredPrices:
    return types.TieredPrices(Decimal(base), [types.Tier(start, Decimal(price)) for start, price in steps])


def model(name: str, prices: object, variants: list[types.PriceVariant] | None = None) -> types.ModelInfo:
    # A table may hold anything that the library can read.
    return types.ModelInfo(name, types.ClauseStartsWith(name), prices=prices, price_variants=variants)  # type: ignore[arg-type]


def book(*models: types.ModelInfo, provider: str = "maker", match: str = "") -> ModelPriceTable:
    whose = types.ClauseStartsWith(match) if match else None
    owner = types.Provider(provider, provider, "https://maker", models=[*models], model_match=whose)
    return ModelPriceTable(DataSnapshot([owner], from_auto_update=False), "1", "0" * 64)


def test_a_quote_says_where_its_prices_are_from() -> None:
    found = quote("openai", "gpt-4.1-2025-04-14", NOW)
    assert found is not None
    assert (found.source, found.version, found.provider) == (SOURCE, genai_prices.__version__, "openai")
    assert (found.model, found.matched, found.at) == ("gpt-4.1-2025-04-14", "gpt-4.1", NOW)
    assert (found.tier, found.band, found.currency, found.reason) == ("standard", "", "USD", "")
    assert found.prices == {"input": Decimal(2), "output": Decimal(8), "cached": Decimal("0.5")}
    content = Path(genai_prices.__file__).with_name("data.py").read_bytes()
    assert found.table_sha256 == sha256(content).hexdigest()
    assert PriceQuote.from_json(found.to_json()) == found


def test_the_table_is_read_once_and_only_when_needed() -> None:
    assert load_table() is load_table()
    asked = "import sys, meruit.usage.pricing; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False, timeout=300).returncode == 0


def test_updates_by_other_code_change_no_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    before = quote("openai", "gpt-4.1", NOW)
    dearer = book(model("gpt-4.1", priced(input_mtok=99, output_mtok=99)), provider="openai").snapshot
    monkeypatch.setattr("genai_prices.data_snapshot._custom_snapshot", dearer)
    assert quote("openai", "gpt-4.1", NOW) == before


@pytest.mark.parametrize(
    ("provider", "name", "tier"),
    [
        ("openai", "gpt-nobody-made", ""),
        ("openai", "", ""),
        ("nobody", "gpt-4.1", ""),
        ("openai-compatible", "gpt-4.1", ""),
        ("litellm", "gibberish", ""),
        ("litellm", "openai/", ""),
        ("openai", "gpt-4.1", "platinum"),
        ("openai", "gpt-4.1", "Priority"),
        ("anthropic", "claude-sonnet-4-5", "priority"),
        ("azure", "gpt-4.1-2025-04-14-us", "priority"),
        ("openai", "gpt-realtime", ""),
        ("openai", "whisper-1", ""),
    ],
)
def test_what_the_table_does_not_say_for_sure_has_no_price(provider: str, name: str, tier: str) -> None:
    assert quote(provider, name, NOW, tier) is None
    assert load_table().quotes(provider, name, NOW, tier) == ()


def test_the_library_prices_an_unknown_tier_as_standard() -> None:
    usage = genai_prices.Usage(input_tokens=1000, output_tokens=10)
    asked = {"model_ref": "gpt-4.1", "provider_id": "openai", "genai_request_timestamp": NOW}
    plain = genai_prices.calc_price(usage, **asked)  # type: ignore[call-overload]
    odd = genai_prices.calc_price(usage, **asked, price_context={"service_tier": "platinum"})  # type: ignore[call-overload]
    assert plain.total_price == odd.total_price


@pytest.mark.parametrize("tier", ["", "standard", "default"])
def test_the_tier_of_everybody_has_several_names(tier: str) -> None:
    found = quote("openai", "gpt-4.1", NOW, tier)
    assert found == quote("openai", "gpt-4.1", NOW)


def test_a_tier_has_its_own_prices_from_the_day_they_are_known() -> None:
    plain, fast, batch = (quote("openai", "gpt-4.1", NOW, tier) for tier in ("", "priority", "batch"))
    assert plain is not None and fast is not None and batch is not None  # noqa: PT018
    assert batch.prices["input"] < plain.prices["input"] < fast.prices["input"]
    assert (fast.tier, batch.tier) == ("priority", "batch")
    assert quote("openai", "gpt-4.1", datetime(2026, 10, 11, 23, 59, tzinfo=UTC), "priority") is None


@pytest.mark.parametrize(
    ("provider", "name", "whose", "matched"),
    [
        ("anthropic_analytics", "claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("openrouter", "openai/gpt-4o", "openrouter", "openai/gpt-4o"),
        ("litellm", "openai/gpt-4.1", "openai", "gpt-4.1"),
        ("litellm", "gemini/gemini-2.5-pro", "google", "gemini-2.5-pro"),
        ("otel", "gpt-4o-2024-08-06", "openai", "gpt-4o"),
        ("files", "claude-sonnet-4-5-20250929", "anthropic", "claude-sonnet-4-5"),
    ],
)
def test_the_account_or_the_name_says_whose_model_it_is(provider: str, name: str, whose: str, matched: str) -> None:
    found = quote(provider, name, NOW, input_tokens=1)
    assert found is not None
    assert (found.provider, found.matched) == (whose, matched)


def test_a_name_that_means_two_models_has_no_price() -> None:
    cheap, dear = model("a", priced(input_mtok=1, output_mtok=1)), model("a-1", priced(input_mtok=2, output_mtok=2))
    assert book(cheap, dear).quote("maker", "a-1", NOW) is None
    assert book(cheap, dear).quote("maker", "a-2", NOW) is not None
    same = model("a-1", priced(input_mtok=1, output_mtok=1))
    assert book(cheap, same).quote("maker", "a-1", NOW) is not None
    batch = [types.PriceVariant({"processing": "batch"}, priced(input_mtok=0.5))]
    assert book(cheap, model("a-1", priced(input_mtok=1, output_mtok=1), batch)).quote("maker", "a-1", NOW) is None


def test_a_name_that_two_providers_claim_has_no_price() -> None:
    one, other = (
        book(model("a", priced(input_mtok=price)), provider=name, match="a").snapshot.providers[0]
        for name, price in (("x", 1), ("y", 2))
    )
    both = ModelPriceTable(DataSnapshot([one, other], from_auto_update=False), "1", "")
    assert both.quote("files", "a", NOW) is None
    assert both.quote("x", "a", NOW) is not None
    assert both.quote("files", "y/a", NOW) is not None


def test_prices_are_those_of_their_day_and_hour() -> None:
    dated = [
        types.ConditionalPrice(types.StartDateConstraint(date(2026, 1, 1)), prices=priced(input_mtok=4)),
        types.ConditionalPrice(types.StartDateConstraint(date(2026, 6, 1)), prices=priced(input_mtok=3)),
        types.ConditionalPrice(types.TimeOfDateConstraint(time(1), time(2)), prices=priced(input_mtok=1)),
    ]
    prices = book(model("a", dated))

    def at(*when: int) -> Decimal | None:
        found = prices.quote("maker", "a", datetime(*when, tzinfo=UTC))  # type: ignore[misc, arg-type]
        return None if found is None else found.prices["input"]

    assert [at(2025, 12, 31, 23), at(2026, 1, 1), at(2026, 5, 31), at(2026, 6, 1)] == [None, 4, 4, 3]
    assert [at(2026, 7, 1, 1, 59), at(2026, 7, 1, 2)] == [1, 3]


def test_each_band_of_context_lengths_has_its_own_quote() -> None:
    prices = book(
        model("a", priced(input_mtok=stepped("1", (100, "2"), (300, "3")), output_mtok=stepped("5", (200, "6"))))
    )
    found = [(one.band, one.prices["input"], one.prices["output"]) for one in prices.quotes("maker", "a", NOW)]
    wanted = [("0-100", 1, 5), ("101-200", 2, 5), ("201-300", 2, 6), ("301-", 3, 6)]
    assert found == [(band, Decimal(read), Decimal(written)) for band, read, written in wanted]
    by_length = [prices.quote("maker", "a", NOW, input_tokens=length) for length in (0, 100, 101, 200, 201, 300, 301)]
    assert [one and one.band for one in by_length] == ["0-100"] * 2 + ["101-200"] * 2 + ["201-300"] * 2 + ["301-"]
    assert prices.quote("maker", "a", NOW) is None, "a call whose length nobody knows may be in any of them"


@pytest.mark.parametrize("apart", ["audio", "image", "video", "reasoning", "citation"])
def test_a_model_that_prices_kinds_of_output_apart_has_no_price_for_their_sum(apart: str) -> None:
    plain = {"input_mtok": 1, "output_mtok": 2}
    assert book(model("a", priced(**plain))).quote("maker", "a", NOW) is not None
    assert book(model("a", priced(**plain, **{f"output_{apart}_mtok": 3}))).quote("maker", "a", NOW) is None


MAKERS = ("anthropic", "deepseek", "google", "groq", "mistral", "openai", "perplexity", "x-ai")


@cache
def known() -> list[tuple[types.Provider, types.ModelInfo]]:
    """Whatever of these makers' models has a price, by its own name."""
    return [
        (owner, one)
        for owner in load_table().snapshot.providers
        for one in (owner.models if owner.id in MAKERS else ())
        if load_table().quotes(owner.id, one.id, NOW)
        and load_table().quotes(owner.id, one.id, NOW)[0].matched == one.id
    ]


def test_most_of_the_table_has_a_price_and_none_is_zero() -> None:
    assert len(known()) > 200
    for owner, one in known():
        for found in load_table().quotes(owner.id, one.id, NOW):
            assert found.prices["input"] > 0


@given(st.data())
def test_a_quote_times_tokens_is_what_the_library_itself_computes(data: st.DataObject) -> None:
    owner, one = data.draw(st.sampled_from(known()), label="model")
    tier = data.draw(st.sampled_from(["", *sorted(_tiers(one))]), label="tier")
    given_tokens = data.draw(st.integers(0, 2_000_000), label="input")
    cached = data.draw(st.integers(0, given_tokens), label="cached")
    written = data.draw(st.integers(0, given_tokens - cached), label="written")
    output = data.draw(st.integers(0, 200_000), label="output")
    found = load_table().quote(owner.id, one.id, NOW, tier, input_tokens=given_tokens)
    if found is None:
        assert tier, "only a tier may be unknown here"
        return
    ours = cost_bounds(Tokens(given_tokens, output, 1, cached, written), found.prices)
    theirs = one.calc_price(
        genai_prices.Usage(
            input_tokens=given_tokens, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output
        ),
        owner,
        genai_request_timestamp=NOW,
        price_context=_context(tier),
    )
    if ours is None:
        assert output > 0
        assert "output" not in found.prices
    else:
        assert ours.low == ours.high == theirs.total_price


def _tiers(one: types.ModelInfo) -> set[str]:
    return {name for variant in one.price_variants or () for key, name in variant.when.items() if key in _KEYS}


def _context(tier: str) -> dict[str, str] | None:
    if not tier:
        return None
    return {"processing": tier} if tier == "batch" else {"service_tier": tier}


_KEYS = {"processing", "service_tier"}
