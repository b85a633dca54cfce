"""Judge a contract's output again by the contract's own criteria."""

from meruit.contracts.marketplace import NO_CRITERIA, Marketplace
from meruit.contracts.store import read as contracts
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.store.transaction import Actor
from meruit.errors import WrongState
from meruit.outcomes.records import OutcomeFilter, criteria_from
from meruit.outcomes.rescore.run import LocalRunner, Skip, rescore


def rejudge(marketplace: Marketplace, actor: Actor, contract_id: str, reason: str) -> ContractSnapshot:
    """Measure and judge the output again, as a new version of its verdict; moves no money. Raises WrongState."""
    store = marketplace.store
    case = marketplace.find_contract(actor, contract_id)
    if case.contract.outcome_id is None:
        raise WrongState("wrong_state", f"contract {contract_id} has no output yet; complete it first")
    criteria = NO_CRITERIA if case.work.criteria is None else criteria_from(case.work.criteria)
    summary = rescore(
        store,
        marketplace.registrar.engine,
        actor.tenant,
        criteria,
        narrowed=OutcomeFilter(contract_id=contract_id),
        reason=f"judged again by {actor.by}: {reason}",
        runner=LocalRunner(),
        now=store.surroundings.clock(),
        progress=lambda _done, _total: None,
        again=True,
    )
    if not summary.rescored:
        why = next(iter(summary.skipped), Skip.QUICKER)
        raise WrongState("not_judged", f"contract {contract_id} could not be judged again: {why}")
    with store.database.reading() as connection:
        return contracts.load_snapshot(connection, actor.scope, contract_id)
