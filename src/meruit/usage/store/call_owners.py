"""Which run owns a call: where runs are attributed by the ids of their calls, each call counts for one run."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select

from meruit.model.metering import AttributionKind, MeteredRun
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import MergeRule, WriteTransaction
from meruit.usage.store.rows import blocks, placeholders


class _CallOwner(NamedTuple):
    """The run that claims a call; empty where the run has dropped it."""

    tenant: str = ""
    run_id: str = ""


_CALL_OWNERS = Rows[_CallOwner]("usage_call")


def read_call_owners(writing: WriteTransaction, runs: Iterable[MeteredRun]) -> None:
    """Read the owners of the calls of these runs, with few queries."""
    by_account: dict[str, dict[str, None]] = {}
    for run in runs:
        for account, call_id in _call_keys(run):
            if not _CALL_OWNERS.is_known(writing, account, call_id):
                by_account.setdefault(account, {})[call_id] = None
    for account, call_ids in by_account.items():
        for block in blocks(call_ids):
            rows = writing.fetch(_OWNERS.format(placeholders(len(block))), account, *block)
            found = {_CALL_OWNERS.key(account, call_id): _CallOwner(tenant, run_id) for call_id, tenant, run_id in rows}
            _CALL_OWNERS.load(writing, found, wanted=(_CALL_OWNERS.key(account, one) for one in block))


def find_claimed_calls(connection: Connection, *, account: str, call_ids: Iterable[str]) -> frozenset[str]:
    """Find the calls that runs have claimed."""
    of = tables.usage_calls
    query = select(of.c.call_id).where(of.c.account == account, of.c.run_id != _CallOwner().run_id)
    return frozenset(
        call_id
        for block in blocks(dict.fromkeys(call_ids))
        for call_id in connection.execute(query.where(of.c.call_id.in_(block))).scalars()
    )


def find_call_of_other_run(writing: WriteTransaction, tenant: str, run: MeteredRun) -> str | None:
    """Find the first of the run's calls that another run has claimed, of any tenant."""
    read_call_owners(writing, [run])
    free = (None, _CallOwner(), _CallOwner(tenant, run.id))
    return next(
        (call for account, call in _call_keys(run) if _CALL_OWNERS.get(writing, account, call) not in free), None
    )


def save_call_owners(writing: WriteTransaction, tenant: str, run: MeteredRun, before: MeteredRun | None = None) -> None:
    """Record the run as the owner of its calls, and release those that it no longer names."""
    named, had = _call_keys(run), {} if before is None else _call_keys(before)
    for one in had.keys() - named.keys():
        _save_owner(writing, *one, _CallOwner())
    for one in named.keys() - had.keys():
        _save_owner(writing, *one, _CallOwner(tenant, run.id))


def _save_owner(writing: WriteTransaction, account: str, call_id: str, owner: _CallOwner) -> None:
    writing.merge(tables.usage_calls, MergeRule.REPLACED, account=account, call_id=call_id, **owner._asdict())
    _CALL_OWNERS.put(writing, owner, account, call_id)


def _call_keys(run: MeteredRun) -> dict[tuple[str, str], None]:
    """The calls that the run is attributed by, each with its account, in order."""
    if run.attribution_key.kind is not AttributionKind.REQUESTS:
        return {}
    return dict.fromkeys((run.source, call.id) for call in run.calls if call.id)


_OWNERS = "SELECT call_id, tenant, run_id FROM usage_calls WHERE account = ? AND call_id IN ({})"
