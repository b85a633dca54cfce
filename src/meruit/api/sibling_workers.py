"""What a worker sends its siblings: new events, changed keys, what the checks of the first worker found."""

import msgspec

from meruit.api.integrity import IntegrityState
from meruit.api.processes.inheritance import WorkerProcess
from meruit.api.processes.siblings import MessageTopic
from meruit.api.request import Service
from meruit.api.witnessing import Patience
from meruit.audit.check import LogProblem
from meruit.events.commit_signal import first_of
from meruit.model.decoding import decode_json

CHECKS_S = 2.0
"""How often the first worker sends what its checks found; a worker that was replaced knows it then."""
MAX_PROBLEMS = 20
"""Most contradictions that siblings show."""


class CheckedState(msgspec.Struct, frozen=True):
    """What the checks of the store have found, as `/health` and the console show it."""

    audit: IntegrityState
    problems: list[LogProblem]
    witnesses: dict[str, Patience]
    witnessed: int
    is_current: bool


def share_with_siblings(service: Service, process: WorkerProcess) -> None:
    """Send the siblings what happens here, and apply what they send."""
    siblings = process.siblings
    service.dispatcher.announce_events(lambda newest: siblings.send(MessageTopic.EVENTS, b"%d" % newest))
    service.authenticator.announce = lambda: siblings.send(MessageTopic.KEYS)
    siblings.on(MessageTopic.EVENTS, lambda content: service.dispatcher.notice_events(int(content)))
    siblings.on(MessageTopic.KEYS, lambda _content: service.authenticator.forget_keys())
    siblings.on(MessageTopic.CHECKS, lambda content: _take_over(service, content))
    siblings.on_metrics(service.instruments.exposition_for_sibling)
    siblings.listen()


async def send_checks(service: Service, process: WorkerProcess) -> None:
    """Send the siblings every few seconds what the checks found, until the service ends."""
    while not service.ended.is_set():
        process.siblings.send(MessageTopic.CHECKS, msgspec.json.encode(_checked(service)))
        await first_of(service.ended, within_s=CHECKS_S)


def _checked(service: Service) -> CheckedState:
    integrity, witnessing = service.integrity, service.witnessing
    return CheckedState(
        audit=integrity.state,
        problems=integrity.problems[:MAX_PROBLEMS],
        witnesses=witnessing.asked,
        witnessed=witnessing.newest,
        is_current=witnessing.is_current,
    )


def _take_over(service: Service, content: bytes) -> None:
    found = decode_json(content, CheckedState)
    integrity, witnessing = service.integrity, service.witnessing
    integrity.state, integrity.problems = found.audit, found.problems
    witnessing.asked, witnessing.newest, witnessing.is_current = found.witnesses, found.witnessed, found.is_current
