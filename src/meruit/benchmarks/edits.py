"""Edit a benchmark: what its next version is, as a document that its author could have written."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from meruit.errors import BadBenchmark, NotFound
from meruit.model.record import Record
from meruit.model.task import Benchmark
from meruit.suggestions import nearest


class BenchmarkChanges(Record, frozen=True):
    """Changes to a benchmark; what is not named stays as it is."""

    title: str | None = None
    description: str | None = None
    # Any: tasks and attachments are parsed with the whole benchmark.
    tasks: tuple[dict[str, Any], ...] = ()
    """Tasks that are added, or replace those of the same id."""
    remove_tasks: tuple[str, ...] = ()
    attachments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Files that are added, or replace those of the same name."""
    remove_attachments: tuple[str, ...] = ()


def apply_changes(before: Benchmark, changes: BenchmarkChanges) -> dict[str, Any]:
    """Return the document of the changed benchmark; raises NotFound for what is to be removed and is not there."""
    if changes == BenchmarkChanges():
        raise BadBenchmark("the edit changes nothing; name a title, a description, tasks or attachments")
    document = before.model_dump(exclude_defaults=True, mode="json", by_alias=True)
    texts = {"title": changes.title, "description": changes.description}
    document |= {name: text for name, text in texts.items() if text is not None}
    replaced: dict[Any, dict[str, Any]] = {}
    for number, one in enumerate(changes.tasks):
        # A task whose id is not text is reported when the whole is parsed.
        name = one["id"] if isinstance(one.get("id"), str) else number
        if name in replaced:
            raise BadBenchmark(f"the edit has task {name!r} twice")
        replaced[name] = one
    tasks = {one["id"]: one for one in document["tasks"]}
    _check_removed("task", changes.remove_tasks, tasks, replaced)
    _check_removed("attachment", changes.remove_attachments, before.attachments, changes.attachments)
    document["tasks"] = [one for name, one in (tasks | replaced).items() if name not in changes.remove_tasks]
    attached = document.get("attachments", {}) | changes.attachments
    document["attachments"] = {name: one for name, one in attached.items() if name not in changes.remove_attachments}
    return document


def _check_removed(what: str, removed: Sequence[str], known: Mapping[str, Any], changed: Mapping[Any, Any]) -> None:
    for name in removed:
        if name in changed:
            raise BadBenchmark(f"the edit both changes and removes {what} {name!r}")
        if name not in known:
            raise NotFound(f"the benchmark has no {what} {name!r}{nearest(name, known) or ''}")
