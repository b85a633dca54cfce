"""Usage files on the disk: read them, judge them and write the verdicts back."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from meruit.cli.views.usage import UsageFileVerdict
from meruit.documents.document import Document
from meruit.documents.document_reader import DocumentReader
from meruit.errors import DocumentError, MeruitError, Problem
from meruit.files import read_bytes
from meruit.model.metering import MeteredRun
from meruit.model.usage import BY_FILE, Observation, UsagePolicy
from meruit.outcomes.export import atomic_file
from meruit.usage.decision import decide
from meruit.usage.files import (
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
"""How far the clock of a file's author may be ahead of ours."""


class UsageManifest(msgspec.Struct, frozen=True):
    """A runs_manifest.json and its content."""

    path: str
    content: bytes
    file: ManifestFile


def load_json(path: str) -> tuple[bytes, Document]:
    """Read a JSON file, or standard input for `-`; raises DocumentError."""
    content = read_bytes(path)
    return content, parse_json(content, "standard input" if path == "-" else path)


def judge_files(path: str, policy: UsagePolicy) -> tuple[list[UsageFileVerdict], UsageManifest | None]:
    """Judge the run of a metrics file, or each run of a manifest; raises DocumentError with every problem."""
    content, document = load_json(path)
    if not is_manifest(document):
        return [_judge_file(path, content, document, policy)], None
    manifest = UsageManifest(path=path, content=content, file=read_manifest(document))
    judged, problems = list[UsageFileVerdict](), list[Problem]()
    for entry, file in runs_of(manifest):
        try:
            found = _judge_file(str(file), *load_json(str(file)), policy)
        except DocumentError as refused:
            problems += [Problem(str(file), str(one)) for one in refused.problems]
            continue
        if found.run_id not in (None, entry.run_id):
            problems.append(Problem(str(file), f"its run_id is {found.run_id!r}, in the manifest {entry.run_id!r}"))
        judged.append(msgspec.structs.replace(found, run_id=entry.run_id, framework=entry.framework))
    if problems:
        raise DocumentError(path, problems)
    return judged, manifest


def _judge_file(path: str, content: bytes, document: Document, policy: UsagePolicy) -> UsageFileVerdict:
    file = read_metrics(document, now=datetime.now(UTC))
    verdict = decide(file.run, file.observations, policy, file.acknowledged)
    return UsageFileVerdict(
        path=path,
        content=content,
        file=file,
        verdict=msgspec.structs.replace(verdict, reported_by=BY_FILE),
        run_id=file.run_id,
    )


def future_observations(file: MetricsFile) -> list[Observation]:
    """Observations with a timestamp in the future, by our clock."""
    latest = datetime.now(UTC) + MAX_AHEAD
    return [one for one in file.observations if one.at > latest]


def load_manifest(path: str) -> UsageManifest:
    """Read a manifest; raises DocumentError."""
    content, document = load_json(path)
    return UsageManifest(path=path, content=content, file=read_manifest(document))


def runs_of(manifest: UsageManifest) -> list[tuple[ManifestEntry, Path]]:
    """Find the metrics file of each run; raises DocumentError that names every run without one."""
    found, problems = list[tuple[ManifestEntry, Path]](), list[Problem]()
    for entry in manifest.file.runs:
        places = _candidate_paths(Path(manifest.path).parent, entry)
        file = next((one for one in places if _is_file(one)), None)
        if file is not None:
            found.append((entry, file))
        else:
            searched = " or ".join(map(str, places)) or "no folder can have that name"
            problems.append(
                Problem(where="runs", message=f"run {entry.run_id!r} has no metrics file: {searched}", line=entry.line)
            )
    if problems:
        raise DocumentError(manifest.path, problems)
    return found


def _candidate_paths(folder: Path, entry: ManifestEntry) -> list[Path]:
    """Paths where a run's file may be, all inside the manifest's folder."""
    names = [entry.run_id] if entry.framework is None else [entry.framework, entry.run_id]
    if any(name == ".." or Path(name).name != name for name in names):
        return []
    ways = [*names], ["runs", *names], [entry.run_id]
    return [*dict.fromkeys(folder.joinpath(*way, METRICS) for way in ways)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name that is too long for the file system does not exist on it.
        return False


def write_verdicts(judged: list[UsageFileVerdict], manifest: UsageManifest | None) -> None:
    """Write the verdicts into their files; raises MeruitError if a file was changed meanwhile."""
    contents = {one.path: (one.content, with_verdict(one.file, one.verdict)) for one in judged}
    if manifest is not None:
        verdicts = {one.run_id: one.verdict for one in judged if one.run_id is not None}
        contents[manifest.path] = (manifest.content, manifest_with(manifest.file, verdicts))
    for path, (before, _) in contents.items():
        if read_bytes(path) != before:
            raise MeruitError(
                f"{path} was changed by another program meanwhile; nothing was written, run the command again"
            )
    # Every file is written under a temporary name before the first is renamed.
    with ExitStack() as files:
        for path, (before, after) in contents.items():
            if after != before:
                file = files.enter_context(atomic_file(Path(path)))
                Path(file.name).chmod(Path(path).stat().st_mode & 0o7777)
                file.write(after)
                file.flush()


class RecordableRun(msgspec.Struct, frozen=True):
    """A run of a file, and its observations."""

    run: MeteredRun
    attempts: tuple[Observation, ...] = ()


def read_recordable(paths: Sequence[str]) -> list[RecordableRun]:
    """Read the runs of metrics files, manifests and API run files; raises MeruitError with every problem."""
    found, problems = list[RecordableRun](), list[str]()
    for path in paths:
        try:
            found += _read_runs(path)
        except DocumentError as refused:
            problems.append(str(refused))
    ids = Counter(one.run.id for one in found)
    problems += [
        f"run {name!r} is in {count} of the files; give each run once" for name, count in ids.items() if count > 1
    ]
    if problems:
        raise MeruitError("\n".join(problems))
    return found


def new_observations(found: RecordableRun, known: Sequence[Observation]) -> list[Observation]:
    """Observations of a file that are not recorded yet; an exported one that comes back is not a second observation."""
    imported = {one.id: mark_imported(one) for one in known}
    return [one for one in found.attempts if imported.get(one.id) != one]


def _read_runs(path: str) -> list[RecordableRun]:
    content, document = load_json(path)
    if is_manifest(document):
        return _read_manifest_runs(UsageManifest(path=path, content=content, file=read_manifest(document)))
    places = DocumentReader(document)
    if places.value_at(("id",)) is not None and places.value_at(("run_id",)) is None:
        return [RecordableRun(_parse_api_run(places, path))]
    file = read_metrics(document, with_attempts=False)
    problems = [
        Problem(f"attempt {one.id!r}", f"has a timestamp in the future ({one.at.isoformat()})")
        for one in future_observations(file)
    ]
    if problems:
        raise DocumentError(path, problems)
    return [RecordableRun(to_metered_run(file), tuple(sorted(file.observations, key=lambda one: one.at)))]


def _parse_api_run(places: DocumentReader, path: str) -> MeteredRun:
    """Read a run as the HTTP API takes it, as strictly; raises DocumentError."""
    # Only this format needs the modules of the service.
    from meruit.api.wire.usage import UsageRunRequest
    from meruit.api.wire.usage_requests import parse_run
    from meruit.errors import InvalidUsageReport

    request = places.record((), UsageRunRequest)
    places.raise_if_invalid()
    # A valid document has a request with an id.
    assert request is not None and request.id is not None  # noqa: S101, PT018
    try:
        return parse_run(request, request.id)
    except InvalidUsageReport as wrong:
        raise DocumentError(path, [Problem(wrong.where, wrong.message)]) from None


def _read_manifest_runs(manifest: UsageManifest) -> list[RecordableRun]:
    """Read the runs of a manifest from their own files; raises DocumentError if file and manifest differ."""
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
