"""Whose each call is: where runs are told by the ids of their calls, none is paid for a call of another's."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select

from meruit.model.metering import LaneKind, MeteredRun
from meruit.store import tables
from meruit.store.transaction import Merged, Writing
from meruit.usage.store.rows import blocks, marks


class _Owner(NamedTuple):
    """Who names a call; nobody, where the run that did no longer does."""

    tenant: str = ""
    run_id: str = ""


def read_calls(writing: Writing, runs: Iterable[MeteredRun]) -> None:
    """Read with few questions whose the calls of these runs are."""
    by_account: dict[str, dict[str, None]] = {}
    for run in runs:
        for account, call_id in _named(run):
            if not _is_known(writing, account, call_id):
                by_account.setdefault(account, {})[call_id] = None
    for account, call_ids in by_account.items():
        for block in blocks(call_ids):
            writing.ahead |= {_key(account, one): None for one in block}
            for call_id, *owner in writing.fetch(_OWNERS.format(marks(len(block))), account, *block):
                writing.ahead[_key(account, call_id)] = _Owner._make(owner)


def claimed(connection: Connection, *, account: str, call_ids: Iterable[str]) -> frozenset[str]:
    """Those of some calls that runs have named."""
    of = tables.usage_calls
    query = select(of.c.call_id).where(of.c.account == account, of.c.run_id != _Owner().run_id)
    return frozenset(
        call_id
        for block in blocks(dict.fromkeys(call_ids))
        for call_id in connection.execute(query.where(of.c.call_id.in_(block))).scalars()
    )


def another_runs(writing: Writing, tenant: str, run: MeteredRun) -> str | None:
    """The first of the run's calls that another run has named, whosever it is."""
    read_calls(writing, [run])
    free = (None, _Owner(), _Owner(tenant, run.id))
    return next((call for account, call in _named(run) if _owner(writing, account, call) not in free), None)


def keep_calls(writing: Writing, tenant: str, run: MeteredRun, before: MeteredRun | None = None) -> None:
    """Write down that the run's calls are its own, and that those are nobody's which it named before."""
    named, had = _named(run), {} if before is None else _named(before)
    for one in had.keys() - named.keys():
        _keep(writing, *one, _Owner())
    for one in named.keys() - had.keys():
        _keep(writing, *one, _Owner(tenant, run.id))


def _keep(writing: Writing, account: str, call_id: str, owner: _Owner) -> None:
    writing.merge(tables.usage_calls, Merged.REPLACED, account, call_id, *owner)
    writing.learn(_key(account, call_id), owner)


def _named(run: MeteredRun) -> dict[tuple[str, str], None]:
    """The calls by which the run is told, with their account, in order."""
    if run.lane.kind is not LaneKind.REQUESTS:
        return {}
    return dict.fromkeys((run.source, call.id) for call in run.calls if call.id)


def _owner(writing: Writing, account: str, call_id: str) -> _Owner | None:
    here = _key(account, call_id)
    taught: _Owner | None = writing.fresh.get(here)
    return taught or writing.ahead[here]


def _is_known(writing: Writing, account: str, call_id: str) -> bool:
    return _key(account, call_id) in writing.ahead


def _key(account: str, call_id: str) -> tuple[str, ...]:
    return ("usage_call", account, call_id)


_OWNERS = "SELECT call_id, tenant, run_id FROM usage_calls WHERE account = ? AND call_id IN ({})"
