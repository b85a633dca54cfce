"""The metrics of several workers as one text, each line with its worker."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meruit.api.processes.inheritance import WorkerProcess

WORKER_UP = "meruit_worker_up"
OF_ALL = frozenset({"meruit_agent_runs"})
"""Metrics that are read from the database, and are the same in every worker."""
_HELP = "# HELP "


async def gather_expositions(process: "WorkerProcess", own: bytes) -> bytes:
    """The metrics of all workers, numbered from 1; `own` are those of this one."""
    answers = {process.index: own, **await process.siblings.ask_metrics()}
    texts = {
        number + 1: None if text is None else text.decode()
        for number, text in sorted(answers.items(), key=lambda one: one[0])
    }
    return merge_expositions(texts, of_all=OF_ALL).encode()


def merge_expositions(texts: Mapping[int, str | None], *, of_all: frozenset[str] = frozenset()) -> str:
    """Merge texts in the format of Prometheus, by the number of the worker; None for one that did not answer.

    A metric in `of_all` is about the whole deployment: one worker has its samples, which get no label.
    """
    families: dict[str, tuple[str, list[str]]] = {}
    for worker, text in texts.items():
        # With the end of the line before: labels hold names of tenants, in which a line's end is escaped.
        for block in f"\n{text or ''}".split(f"\n{_HELP}")[1:]:
            head, samples = _split_block(block)
            name = head.split(" ", 1)[0]
            if name in of_all:
                families.setdefault(name, (head, []))[1].extend(samples)
            else:
                families.setdefault(name, (head, []))[1].extend(_label(line, worker) for line in samples)
    up = [f'{WORKER_UP}{{worker="{worker}"}} {int(text is not None)}' for worker, text in texts.items()]
    families[WORKER_UP] = (f"{WORKER_UP} Whether the worker answered.\n# TYPE {WORKER_UP} gauge", up)
    return "".join("\n".join([f"{_HELP}{head}", *lines, ""]) for head, lines in families.values())


def _split_block(block: str) -> tuple[str, list[str]]:
    """The lines of a family: its help and type, and its samples."""
    lines = block.rstrip("\n").split("\n")
    comments = [line for line in lines[1:] if line.startswith("#")]
    return "\n".join([lines[0], *comments]), [line for line in lines[1:] if not line.startswith("#")]


def _label(line: str, worker: int) -> str:
    """Add the worker to the labels of a sample; the name of a metric has neither a brace nor a space."""
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
