"""What an operator decides on a contract: each act has a dialog that shows what it would do, and takes a reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from meruit.api.routes.contracts import validate_reason
from meruit.console.contract_words import money
from meruit.console.page import OPERATORS, PageRequest, action, page, read_field
from meruit.console.query import Query
from meruit.contracts import records as contracts
from meruit.contracts.lifecycle import Decision
from meruit.contracts.preview import PreviewTransition, TransitionPreview, with_balances
from meruit.contracts.records import ContractRequest, ContractSnapshot, new_salt
from meruit.contracts.transitions import (
    DisputeContract,
    ReleaseContract,
    ResolveDispute,
    ReverseContract,
    SettleContract,
    VoidContract,
    to_settlement_amount,
)
from meruit.errors import ApiProblem, NotFound
from meruit.model.contract import ContractState
from meruit.model.threshold import money as parse_money
from meruit.store.recorder import Write
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PREVIEW_REASON = "preview"
"""Stands for the reason that the operator has not written yet; a preview is not kept."""

Transition = Callable[[PageRequest, str, str, str], Write[ContractSnapshot]]


@dataclass(frozen=True, slots=True)
class _Act:
    title: str
    verb: str
    transition: Transition
    tone: Literal["go", "bad"] = "go"
    takes_amount: bool = False


def _contract_request(request: PageRequest) -> ContractRequest:
    return ContractRequest(request.actor, None)


def _release(request: PageRequest, contract_id: str, reason: str, _amount: str) -> Write[ContractSnapshot]:
    salt = new_salt(request.service.store.surroundings.entropy)
    return ReleaseContract(request=_contract_request(request), contract_id=contract_id, reason=reason, salt=salt)


def _settle(request: PageRequest, contract_id: str, _reason: str, _amount: str) -> Write[ContractSnapshot]:
    return SettleContract(_contract_request(request), contract_id)


def _void(request: PageRequest, contract_id: str, reason: str, _amount: str) -> Write[ContractSnapshot]:
    return VoidContract(request=_contract_request(request), contract_id=contract_id, reason=reason)


def _reverse(request: PageRequest, contract_id: str, reason: str, _amount: str) -> Write[ContractSnapshot]:
    return ReverseContract(request=_contract_request(request), contract_id=contract_id, reason=reason)


def _dispute(request: PageRequest, contract_id: str, reason: str, _amount: str) -> Write[ContractSnapshot]:
    return DisputeContract(request=_contract_request(request), contract_id=contract_id, reason=reason)


def _resolve(decision: Decision) -> Transition:
    def resolve(request: PageRequest, contract_id: str, reason: str, amount: str) -> Write[ContractSnapshot]:
        settled_on = to_settlement_amount(_parse_amount(amount), None) if decision is Decision.ADJUST else None
        return ResolveDispute(
            request=_contract_request(request),
            contract_id=contract_id,
            decision=decision,
            reason=reason,
            amount=settled_on,
        )

    return resolve


ACTS = {
    "release": _Act("Release this contract?", "Release", _release),
    "settle": _Act("Settle this contract?", "Settle", _settle),
    "void": _Act("Void this contract?", "Void", _void, "bad"),
    "reverse": _Act("Reverse this payment?", "Reverse", _reverse, "bad"),
    "dispute": _Act("Dispute this contract?", "Dispute", _dispute),
}
DECISIONS = {
    "uphold": _Act("Uphold what was decided?", "Uphold", _resolve(Decision.UPHOLD)),
    "adjust": _Act("Settle the dispute on an amount?", "Adjust", _resolve(Decision.ADJUST), takes_amount=True),
    "reverse": _Act("Reverse this payment?", "Reverse", _resolve(Decision.REVERSE), "bad"),
    "void": _Act("Void this contract?", "Void", _resolve(Decision.VOID), "bad"),
}
"""The acts on a disputed contract."""


@page("/contracts/{contract_id:str}/{act_name:str}", roles=OPERATORS)
async def show_act(request: PageRequest, contract_id: FromPath[str], act_name: FromPath[str]) -> Response[Any]:
    """Show what an act would do, and ask for the reason."""
    found, act = await _find_act(request, contract_id, act_name)
    amount = Query.of(request).get("amount")
    values: dict[str, Any] = {
        "contract": found.contract,
        "act": act,
        "amount": amount,
        "title": act.title,
        "post_to": f"/contracts/{contract_id}/{act_name}",
        "back": f"/contracts/{contract_id}",
    }
    if act.takes_amount and not amount:
        return request.show("contract-amount.html", **values)
    preview = await _preview(request, act, contract_id, amount)
    changes = await request.service.read(lambda connection: with_balances(connection, request.caller.tenant, preview))
    return request.show(
        "contract-act.html",
        **values,
        changes=changes,
        button=_button(act, preview, found),
        after=preview.after,
        needs_reason=act.transition is not _settle,
    )


@action("/contracts/{contract_id:str}/{act_name:str}")
async def do_act(request: PageRequest, contract_id: FromPath[str], act_name: FromPath[str]) -> Response[Any]:
    """Act on a contract, for a reason that is kept for good."""
    _, act = await _find_act(request, contract_id, act_name)
    reason = await read_field(request, "reason")
    if act.transition is not _settle:
        reason = validate_reason(reason)
    amount = await read_field(request, "amount", longest=40)
    done = await request.service.store.recorder.record(act.transition(request, contract_id, reason, amount))
    return request.go_to(f"/contracts/{contract_id}", f"{act.verb}: done. The contract is {_word(done)}.")


async def _find_act(request: PageRequest, contract_id: str, act_name: str) -> tuple[ContractSnapshot, _Act]:
    scope = request.caller.scope
    found = await request.service.read(lambda connection: contracts.load_snapshot(connection, scope, contract_id))
    known = DECISIONS if found.contract.state is ContractState.DISPUTED else ACTS
    act = known.get(act_name)
    if act is None and act_name not in ACTS | DECISIONS:
        raise NotFound(f"no act is named {act_name!r}")
    if act is None:
        state = str(found.contract.state).replace("_", " ")
        raise ApiProblem(409, "wrong_state", f"the contract changed while you looked: it is {state}; nothing was done")
    return found, act


async def _preview(request: PageRequest, act: _Act, contract_id: str, amount: str) -> TransitionPreview:
    transition = act.transition(request, contract_id, PREVIEW_REASON, amount)
    return await request.service.store.recorder.record(PreviewTransition(transition))


def _button(act: _Act, preview: TransitionPreview, found: ContractSnapshot) -> str:
    """What the button does, with the amount."""
    contract, currency = found.contract, found.contract.currency
    bill = preview.after.bill
    match act.verb:
        case "Release" | "Settle" | "Adjust" if bill is not None:
            return f"{act.verb}, pay {money(bill.total, currency)}"
        case "Void":
            return f"Void, return {money(contract.hold_micros, currency)}"
        case "Reverse":
            return f"Reverse {money(contract.total_micros, currency)}"
        case "Dispute" if contract.total_micros:
            return f"Dispute the payment of {money(contract.total_micros, currency)}"
        case "Dispute":
            return f"Dispute, freeze {money(contract.hold_micros, currency)}"
        case _:
            return act.verb


def _word(done: ContractSnapshot) -> str:
    return str(done.contract.state).replace("_", " ")


def _parse_amount(text: str) -> Any:
    try:
        return parse_money(text)
    except ValueError as refused:
        raise ApiProblem(400, "bad_amount", f"amount: {refused}") from None
