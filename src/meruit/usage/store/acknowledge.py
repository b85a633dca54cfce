"""Accept a count that fell."""

import msgspec

from meruit.errors import NothingToAcknowledge
from meruit.model.events import EventType
from meruit.model.metering import UsageRecord
from meruit.model.usage import Acknowledgement, UsageCode, UsagePolicy
from meruit.store.transaction import WriteTransaction
from meruit.usage.schedule import Schedule
from meruit.usage.store.decide_again import decide_again
from meruit.usage.store.publish import emit, publish
from meruit.usage.store.rows import load_run, save
from meruit.usage.store.validate import check_ack

_DEFAULT_POLICY, _DEFAULT_SCHEDULE = UsagePolicy(), Schedule()


class Acknowledge(msgspec.Struct, frozen=True):
    """Accept a count that fell."""

    tenant: str
    run_id: str
    ack: Acknowledgement
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Decide again with the lower count; raises NothingToAcknowledge, InvalidUsage, NotFound."""
        check_ack(self.ack)
        before = load_run(writing, self.tenant, self.run_id, with_observations=True)
        record = before.record
        if record.verdict.code is not UsageCode.DECREASED:
            if any((one.by, one.reason) == (self.ack.by, self.ack.reason) for one in record.acknowledged):
                # A retry of a request that succeeded.
                return record
            raise NothingToAcknowledge(
                f"run {self.run_id} is {record.verdict.status} ({record.verdict.code}); "
                "only a count that fell can be acknowledged"
            )
        # An acknowledgement covers every recorded observation and no later one, by any clock.
        at = max(one.observation.at for one in before.observations or ())
        ack = msgspec.structs.replace(self.ack, at=at)
        record = msgspec.structs.replace(record, acknowledged=(*record.acknowledged, ack))
        stored = decide_again(msgspec.structs.replace(before, record=record), self.policy, self.schedule)
        what = f"acknowledged:{len(record.acknowledged)}"
        emit(writing, self.tenant, EventType.USAGE_ACKNOWLEDGED, stored.record, what)
        stored = publish(writing, self.tenant, before.record, stored, ack)
        save(writing, self.tenant, stored)
        return stored.record
