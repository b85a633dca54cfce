"""Make runs due at once."""

from collections.abc import Sequence

import msgspec

from meruit.model.metering import UsageRecord
from meruit.model.time import from_micros
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.rows import load_runs, save


class ObserveNow(msgspec.Struct, frozen=True):
    """Make runs due at once."""

    tenant: str
    run_ids: Sequence[str]

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Make the runs due, except open ones, which are never observed. Raises NotFound."""
        now = from_micros(writing.now.micros)
        stored = load_runs(writing, self.tenant, self.run_ids)
        for run_id, one in stored.items():
            if one.record.run.ended_at is not None:
                # A run that is due already keeps its time: another reconciler may be about to observe it.
                due = one.record.next_observation_at
                due = now if due is None else min(due, now)
                record = msgspec.structs.replace(one.record, next_observation_at=due, waits="")
                stored[run_id] = msgspec.structs.replace(one, record=record)
                save(writing, self.tenant, stored[run_id])
        return [one.record for one in stored.values()]
