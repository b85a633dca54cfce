"""Freeze prices with a run, and record its costs."""

from collections.abc import Iterable, Sequence

import msgspec

from meruit.errors import PriceAlreadyFrozen
from meruit.model.metering import PriceQuote, RunCosts, UsageRecord
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.rows import load_run, save_prices, with_prefetch


@with_prefetch
class RecordPrices(msgspec.Struct, frozen=True):
    """Freeze prices with a run, and record its costs."""

    tenant: str
    run_id: str
    quotes: tuple[PriceQuote, ...] = ()
    ledger: RunCosts = RunCosts()

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Add the prices and costs that are given; the others stay. Raises PriceAlreadyFrozen, NotFound."""
        stored = load_run(writing, self.tenant, self.run_id)
        record = stored.record
        quotes = (*record.quotes, *self._new_quotes(record.quotes))
        record = msgspec.structs.replace(record, quotes=quotes, ledger=self._merge_ledger(record.ledger))
        if record != stored.record:
            save_prices(writing, self.tenant, msgspec.structs.replace(stored, record=record))
        return record

    def _new_quotes(self, frozen: tuple[PriceQuote, ...]) -> list[PriceQuote]:
        known = {_quote_key(one) for one in frozen}
        new = [one for one in self.quotes if one not in frozen]
        for one in new:
            if _quote_key(one) in known and not one.reason:
                raise PriceAlreadyFrozen(
                    f"run {self.run_id} has a price for {one.model} already; give a reason to add another one"
                )
        return new

    def _merge_ledger(self, ledger: RunCosts) -> RunCosts:
        given = {
            name: amount
            for name in ("quoted", "billed", "settled")
            if (amount := getattr(self.ledger, name)) is not None
        }
        known = [name for name in ("quoted", "billed", "settled") if getattr(ledger, name) is not None]
        if given and known and ledger.currency != self.ledger.currency:
            raise PriceAlreadyFrozen(
                f"the costs of run {self.run_id} are in {ledger.currency}, not in {self.ledger.currency}"
            )
        return msgspec.structs.replace(ledger, **given, currency=self.ledger.currency) if given else ledger


def first_quotes(frozen: Sequence[PriceQuote], quotes: Iterable[PriceQuote]) -> Iterable[PriceQuote]:
    """The first quote of each model, tier and band that has no price yet."""
    known = {_quote_key(one) for one in frozen}
    for one in quotes:
        if _quote_key(one) not in known:
            known.add(_quote_key(one))
            yield one


def _quote_key(quote: PriceQuote) -> tuple[str, ...]:
    """What a quote is a price of."""
    return (quote.provider, quote.model, quote.tier, quote.band)
