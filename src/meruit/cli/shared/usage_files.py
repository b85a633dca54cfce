"""Usage files on the disk: found, judged, and put back whole."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from meruit.cli.views.usage import UsageFileVerdict
from meruit.config import read_bytes
from meruit.documents.document import Document
from meruit.documents.document_reader import DocumentReader
from meruit.errors import DocumentError, MeruitError, Problem
from meruit.model.metering import MeteredRun
from meruit.model.usage import Observation, UsagePolicy
from meruit.outcomes.export import atomic_file
from meruit.usage.decision import decide
from meruit.usage.files import (
    REPORTED_BY,
    ManifestEntry,
    ManifestFile,
    MetricsFile,
    is_manifest,
    manifest_with,
    mark_imported,
    parse_json,
    read_manifest,
    read_metrics,
    to_metered_run,
    with_verdict,
)

METRICS = "metrics.json"
MAX_AHEAD = timedelta(hours=1)
"""By how much the clock of whoever wrote a file may be ahead of ours."""


class UsageManifest(NamedTuple):
    """A manifest as it was read."""

    path: str
    content: bytes
    file: ManifestFile


def load_json(path: str) -> tuple[bytes, Document]:
    """A JSON file, or standard input for `-`; raises DocumentError."""
    content = read_bytes(path)
    return content, parse_json(content, "standard input" if path == "-" else path)


def judge_files(path: str, policy: UsagePolicy) -> tuple[list[UsageFileVerdict], UsageManifest | None]:
    """The run of a metrics file, or each run that a manifest names; raises DocumentError with all that is wrong."""
    content, document = load_json(path)
    if not is_manifest(document):
        return [_judge_file(path, content, document, policy)], None
    manifest = UsageManifest(path, content, read_manifest(document))
    judged, problems = list[UsageFileVerdict](), list[Problem]()
    for entry, file in runs_of(manifest):
        try:
            found = _judge_file(str(file), *load_json(str(file)), policy)
        except DocumentError as refused:
            problems += [Problem(str(file), str(one)) for one in refused.problems]
            continue
        if found.run_id not in (None, entry.run_id):
            problems.append(Problem(str(file), f"its run_id is {found.run_id!r}, in the manifest {entry.run_id!r}"))
        judged.append(found._replace(run_id=entry.run_id, framework=entry.framework))
    if problems:
        raise DocumentError(path, problems)
    return judged, manifest


def _judge_file(path: str, content: bytes, document: Document, policy: UsagePolicy) -> UsageFileVerdict:
    file = read_metrics(document, now=datetime.now(UTC))
    verdict = decide(file.run, file.observations, policy, file.acknowledged)
    return UsageFileVerdict(path, content, file, msgspec.structs.replace(verdict, reported_by=REPORTED_BY), file.run_id)


def future_observations(file: MetricsFile) -> list[Observation]:
    """The looks that are still to come, by our clock."""
    latest = datetime.now(UTC) + MAX_AHEAD
    return [one for one in file.observations if one.at > latest]


def load_manifest(path: str) -> UsageManifest:
    """A manifest; raises DocumentError."""
    content, document = load_json(path)
    return UsageManifest(path, content, read_manifest(document))


def runs_of(manifest: UsageManifest) -> list[tuple[ManifestEntry, Path]]:
    """The metrics file of each run; raises DocumentError that names every run that has none."""
    found, problems = list[tuple[ManifestEntry, Path]](), list[Problem]()
    for entry in manifest.file.runs:
        places = _candidate_paths(Path(manifest.path).parent, entry)
        file = next((one for one in places if _is_file(one)), None)
        if file is not None:
            found.append((entry, file))
        else:
            looked = " or ".join(map(str, places)) or "no folder can have that name"
            said = f"run {entry.run_id!r} is not there: {looked}"
            problems.append(Problem("runs", said, entry.line))
    if problems:
        raise DocumentError(manifest.path, problems)
    return found


def _candidate_paths(folder: Path, entry: ManifestEntry) -> list[Path]:
    """Where a run's file may be, and nowhere outside of the manifest's folder."""
    names = [entry.run_id] if entry.framework is None else [entry.framework, entry.run_id]
    if any(name == ".." or Path(name).name != name for name in names):
        return []
    ways = [*names], ["runs", *names], [entry.run_id]
    return [*dict.fromkeys(folder.joinpath(*way, METRICS) for way in ways)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name too long for the disk names nothing on it.
        return False


def write_verdicts(judged: list[UsageFileVerdict], manifest: UsageManifest | None) -> None:
    """Write the verdicts into the files that they are about; raises MeruitError where one was changed meanwhile."""
    contents = {one.path: (one.content, with_verdict(one.file, one.verdict)) for one in judged}
    if manifest is not None:
        verdicts = {one.run_id: one.verdict for one in judged if one.run_id is not None}
        contents[manifest.path] = (manifest.content, manifest_with(manifest.file, verdicts))
    for path, (before, _) in contents.items():
        if read_bytes(path) != before:
            raise MeruitError(f"{path} was changed by somebody else meanwhile; nothing was written, try again")
    # What cannot be written is found out before the first file takes its name.
    with ExitStack() as files:
        for path, (before, after) in contents.items():
            if after != before:
                file = files.enter_context(atomic_file(Path(path)))
                Path(file.name).chmod(Path(path).stat().st_mode & 0o7777)
                file.write(after)
                file.flush()


class RecordableRun(NamedTuple):
    """A run that a file holds, and the looks at it that the file knows of."""

    run: MeteredRun
    attempts: tuple[Observation, ...] = ()


def read_recordable(paths: Sequence[str]) -> list[RecordableRun]:
    """The runs in metrics files, manifests, and files with a run as it is recorded; DocumentError with all problems."""
    found, problems = list[RecordableRun](), list[str]()
    for path in paths:
        try:
            found += _read_runs(path)
        except DocumentError as refused:
            problems.append(str(refused))
    ids = Counter(one.run.id for one in found)
    problems += [f"run {name!r} is in {count} of the files; each run once" for name, count in ids.items() if count > 1]
    if problems:
        raise MeruitError("\n".join(problems))
    return found


def new_observations(found: RecordableRun, known: Sequence[Observation]) -> list[Observation]:
    """The looks that a file adds to those that are recorded: the echo of one that was exported is no second look."""
    heard = {one.id: mark_imported(one) for one in known}
    return [one for one in found.attempts if heard.get(one.id) != one]


def _read_runs(path: str) -> list[RecordableRun]:
    content, document = load_json(path)
    if is_manifest(document):
        return _read_manifest_runs(UsageManifest(path, content, read_manifest(document)))
    places = DocumentReader(document)
    if places.value_at(("id",)) is not None and places.value_at(("run_id",)) is None:
        return [RecordableRun(_parse_api_run(places, path))]
    file = read_metrics(document, looked=False)
    problems = [
        Problem(f"attempt {one.id!r}", f"was at {one.at.isoformat()}, which is still to come")
        for one in future_observations(file)
    ]
    if problems:
        raise DocumentError(path, problems)
    return [RecordableRun(to_metered_run(file), tuple(sorted(file.observations, key=lambda one: one.at)))]


def _parse_api_run(places: DocumentReader, path: str) -> MeteredRun:
    """A run in the shape that the HTTP API takes, read as strictly; raises DocumentError."""
    # Only this shape needs what the service is made of.
    from meruit.api.routes.usage_requests import parse_run
    from meruit.api.routes.usage_wire import UsageRunRequest
    from meruit.errors import InvalidUsageReport

    told = places.record((), UsageRunRequest)
    places.raise_if_invalid()
    # Where nothing is wrong, there is one, and it has an id.
    assert told is not None and told.id is not None  # noqa: S101, PT018
    try:
        return parse_run(told, told.id)
    except InvalidUsageReport as wrong:
        raise DocumentError(path, [Problem(wrong.where, wrong.message)]) from None


def _read_manifest_runs(manifest: UsageManifest) -> list[RecordableRun]:
    """The runs of a manifest, each as its own file tells of it; where the two differ, nobody knows whose it is."""
    named = runs_of(manifest)
    found = read_recordable([str(file) for _, file in named])
    problems = [
        Problem(str(file), f"{what} is {here!r}, in the manifest {there!r}")
        for (entry, file), one in zip(named, found, strict=True)
        for what, here, there in (
            ("its run_id", one.run.id, entry.run_id),
            ("its framework", one.run.framework, entry.framework or one.run.framework),
        )
        if here != there
    ]
    if problems:
        raise DocumentError(manifest.path, problems)
    return found
