"""Count how often agents have their own work verified, so that scores do not reveal what is hidden in criteria."""

import msgspec

from meruit.contracts.store.read import parse_terms
from meruit.errors import NoTriesLeft
from meruit.model.access import AgentScore
from meruit.model.contract import AgentTries
from meruit.outcomes.records import RecordAll, RecordedVersion
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import MergeRule, WriteTransaction

NEWEST = 100
"""Contracts of an agent among which the open one is looked for."""
_USED = Rows[int]("agent_tries")


class RecordedTries(msgspec.Struct, frozen=True):
    """What was recorded, and what is left of the budget."""

    tries: AgentTries
    shown: AgentScore
    """What the agent sees of the scores."""
    versions: list[RecordedVersion]


class RecordTries(msgspec.Struct, frozen=True):
    """Work that an agent submits itself: recorded within its budget, or refused as a whole."""

    agent_id: str
    criteria_digest: str
    budget: int
    """Without an open contract."""
    shown: AgentScore
    """Without an open contract."""
    record: RecordAll

    def __call__(self, writing: WriteTransaction) -> RecordedTries:
        """Count the tries and record the work; raises NoTriesLeft."""
        # The newest open contract with the same criteria; its terms go first.
        rows = writing.ask(_OPEN_CONTRACT, self.record.tenant, self.agent_id, NEWEST, self.criteria_digest)
        if rows:
            terms = parse_terms(bytes(rows[0][1]))
            tries, shown = self._count(writing, rows[0][0], terms.agent_tries), terms.agent_score
        else:
            tries, shown = self._count(writing, "", self.budget), self.shown
        return RecordedTries(tries=tries, shown=shown, versions=self.record(writing))

    def _count(self, writing: WriteTransaction, contract_id: str, budget: int) -> AgentTries:
        tenant, wanted = self.record.tenant, len(self.record.outcomes)
        key = (tenant, self.agent_id, self.criteria_digest, contract_id)
        used = _USED.get(writing, *key)
        if used is None:
            found = writing.ask(_USED_BEFORE, *key)
            used = int(found[0][0]) if found else 0
        if used + wanted > budget:
            raise NoTriesLeft(
                f"the agent may verify its work {budget} times by these criteria, and {max(budget - used, 0)} of them "
                "are left; complete the contract, or ask the operator for more (agent_tries)"
            )
        _USED.put(writing, used + wanted, *key)
        writing.merge(
            tables.agent_tries,
            MergeRule.REPLACED,
            tenant=tenant,
            agent_id=self.agent_id,
            criteria_digest=self.criteria_digest,
            contract_id=contract_id,
            used=used + wanted,
        )
        return AgentTries(used + wanted, budget - used - wanted, budget, contract_id or None)


_USED_BEFORE = (
    "SELECT used FROM agent_tries WHERE tenant = ? AND agent_id = ? AND criteria_digest = ? AND contract_id = ?"
)
_OPEN_CONTRACT = (
    "SELECT c.id, c.terms FROM ("
    "SELECT tenant, id, seq, terms, work_id, state FROM contracts WHERE tenant = ? AND agent_id = ? "
    "ORDER BY seq DESC LIMIT ?"
    ") AS c JOIN works ON works.tenant = c.tenant AND works.id = c.work_id "
    "WHERE c.state IN ('awarded', 'executing') AND works.criteria_digest = ? ORDER BY c.seq DESC LIMIT 1"
)
