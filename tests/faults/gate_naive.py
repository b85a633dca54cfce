"""Mistakes that the gate does not make, to know that its crash matrix would notice them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from meruit.gate import journal
from meruit.gate.accounting import AccountedSubmission, AnsweredSubmission, account
from meruit.gate.state import SchemaErrorFound, VerdictGiven, VerificationState
from meruit.gate.store import runs as agent_runs
from meruit.gate.store import submissions
from meruit.gate.store.rows import load_run_row, save
from meruit.store.transaction import WriteTransaction


class Count(NamedTuple):
    """One more attempt, in a transaction of its own."""

    tenant: str
    run_id: str
    happening: VerdictGiven | SchemaErrorFound

    def __call__(self, writing: WriteTransaction) -> None:
        """Count it, whoever else has."""
        held = load_run_row(writing, self.tenant, self.run_id)
        before = held.run.verification
        _, done = account(before, self.happening)
        if done is not None and done.counted:
            more = msgspec.structs.replace(before, attempts_used=before.attempts_used + 1)
            save(
                writing,
                self.tenant,
                msgspec.structs.replace(held, run=msgspec.structs.replace(held.run, verification=more)),
            )


def count_apart() -> None:
    """Count an attempt first, and write down for which submission afterwards."""
    kept = journal.StoreJournal.submit

    async def counted(
        self: journal.StoreJournal, state: VerificationState, answered: AnsweredSubmission, key: str | None = None
    ) -> AccountedSubmission:
        if key is None or self.find_step(key) is None:
            await self._store.recorder.record(Count(self._tenant, self._run_id, answered.event))
        return await kept(self, state, answered, key)

    # Any: as it is called, and handed on.
    def uncounted(before: VerificationState, happening: Any, **more: Any) -> Any:
        after, done = account(before, happening, **more)
        if done is None or not done.counted:
            return after, done
        return account(msgspec.structs.replace(before, attempts_used=before.attempts_used - 1), happening, **more)

    setattr(journal.StoreJournal, "submit", counted)  # noqa: B010 - mypy takes no method's place otherwise
    setattr(submissions, "account", uncounted)  # noqa: B010


def nobody_owns() -> None:
    """Let whoever wakes up late write of a run that is another's by now."""
    for module in (agent_runs, submissions):
        setattr(module, "check_owner", lambda _held, _owner: None)  # noqa: B010


NAIVE: dict[str, Callable[[], None]] = {"count": count_apart, "owner": nobody_owns}
