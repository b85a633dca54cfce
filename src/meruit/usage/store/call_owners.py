"""Which run owns a call: where runs are attributed by the ids of their calls, each call counts for one run.

A call that another tenant names is free for this one, unless the operator says that they share the account.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select

from meruit.model.metering import AttributionKind, MeteredRun
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import MergeRule, WriteTransaction
from meruit.usage.store.rows import blocks, placeholders

_FREE = ""
"""The owner of a call that its run has dropped."""
_CALL_OWNERS = Rows[str]("usage_call")


def read_call_owners(writing: WriteTransaction, tenants: Sequence[str], runs: Iterable[MeteredRun]) -> None:
    """Read the owners of the calls of these runs, with few queries."""
    by_account: dict[str, dict[str, None]] = {}
    for run in runs:
        for account, call_id in _call_keys(run):
            by_account.setdefault(account, {})[call_id] = None
    for account, call_ids in by_account.items():
        for tenant in tenants:
            unknown = [one for one in call_ids if not _CALL_OWNERS.is_known(writing, tenant, account, one)]
            for block in blocks(unknown):
                rows = writing.fetch(_OWNERS.format(placeholders(len(block))), tenant, account, *block)
                found = {_CALL_OWNERS.key(tenant, account, call_id): run_id for call_id, run_id in rows}
                _CALL_OWNERS.load(writing, found, wanted=(_CALL_OWNERS.key(tenant, account, one) for one in block))


def find_claimed_calls(
    connection: Connection, *, tenants: Sequence[str], account: str, call_ids: Iterable[str]
) -> frozenset[str]:
    """Find the calls that runs of these tenants have claimed."""
    of = tables.usage_calls
    query = select(of.c.call_id).where(of.c.tenant.in_(tenants), of.c.account == account, of.c.run_id != _FREE)
    return frozenset(
        call_id
        for block in blocks(dict.fromkeys(call_ids))
        for call_id in connection.execute(query.where(of.c.call_id.in_(block))).scalars()
    )


def find_call_of_other_run(
    writing: WriteTransaction, tenant: str, tenants: Sequence[str], run: MeteredRun
) -> str | None:
    """Find the first of the run's calls that another run of these tenants has claimed."""
    read_call_owners(writing, tenants, [run])
    return next(
        (
            call
            for account, call in _call_keys(run)
            for one in tenants
            if _CALL_OWNERS.get(writing, one, account, call) not in (None, _FREE, run.id if one == tenant else None)
        ),
        None,
    )


def save_call_owners(writing: WriteTransaction, tenant: str, run: MeteredRun, before: MeteredRun | None = None) -> None:
    """Record the run as the owner of its calls, and release those that it no longer names."""
    named, had = _call_keys(run), {} if before is None else _call_keys(before)
    for one in had.keys() - named.keys():
        _save_owner(writing, tenant, *one, _FREE)
    for one in named.keys() - had.keys():
        _save_owner(writing, tenant, *one, run.id)


def _save_owner(writing: WriteTransaction, tenant: str, account: str, call_id: str, run_id: str) -> None:
    writing.merge(
        tables.usage_calls, MergeRule.REPLACED, tenant=tenant, account=account, call_id=call_id, run_id=run_id
    )
    _CALL_OWNERS.put(writing, run_id, tenant, account, call_id)


def _call_keys(run: MeteredRun) -> dict[tuple[str, str], None]:
    """The calls that the run is attributed by, each with its account, in order."""
    if run.attribution_key.kind is not AttributionKind.REQUESTS:
        return {}
    return dict.fromkeys((run.source, call.id) for call in run.calls if call.id)


_OWNERS = "SELECT call_id, run_id FROM usage_calls WHERE tenant = ? AND account = ? AND call_id IN ({})"
