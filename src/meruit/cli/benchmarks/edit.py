"""`meruit benchmark edit | delete`: change a published benchmark by publishing its next version, or hide it."""

from collections import ChainMap
from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    check_stdin_used_once,
    config_option,
    json_option,
    note,
    print_json,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.benchmarks.records import BenchmarkView
    from meruit.model.task import Benchmark


@click.command()
@click.argument("slug", metavar="SLUG")
@click.option("--file", "file", metavar="FILE.yaml", help="Replace the whole content by this file; - is stdin.")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="FILE.yaml",
    help="Add the task of this file, or replace the task of the same id; may be repeated.",
)
@click.option("--remove", "removed", multiple=True, metavar="ID", help="Remove this task; may be repeated.")
@click.option("--title", metavar="TEXT", help="Set the title.")
@click.option("--description", metavar="TEXT", help="Set the description.")
@click.option(
    "--base",
    type=click.IntRange(min=0),
    metavar="V",
    help="Version that you have read; the edit is refused if another is the newest.",
)
@tenant_option
@store_options
@config_option
@json_option
def edit(  # noqa: PLR0913 - one an option
    *,
    slug: str,
    file: str | None,
    tasks: tuple[str, ...],
    removed: tuple[str, ...],
    title: str | None,
    description: str | None,
    base: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Publish the next version of a benchmark, and print its name.

    Earlier versions and their runs stay as they are. An edit that changes nothing publishes nothing.
    """
    # Imported here, and below, so that --help is quick.
    from meruit.benchmarks.edits import BenchmarkChanges, apply_changes
    from meruit.cli.shared.benchmark_runs import run_until_interrupted, select_tasks
    from meruit.cli.shared.benchmark_session import open_session
    from meruit.cli.shared.contracts import COMMAND_LINE, command_line_actor
    from meruit.documents.authoring import parse_benchmark
    from meruit.errors import NotFound
    from meruit.playground.load import load_benchmark, load_tasks

    check_stdin_used_once(*tasks, file, config)
    command_line_actor(tenant)
    if file is not None and (tasks or removed or title is not None or description is not None):
        raise click.UsageError("--file replaces everything; leave out --task, --remove, --title and --description")
    whole = None if file is None else load_benchmark(file)
    if whole is not None and whole.benchmark != slug:
        raise click.UsageError(f"{file} is the benchmark {whole.benchmark}, not {slug}")
    loaded = [load_tasks(path, slug).model_dump(exclude_defaults=True, mode="json", by_alias=True) for path in tasks]
    changes = BenchmarkChanges(
        title=title,
        description=description,
        remove_tasks=removed,
        tasks=tuple(task for one in loaded for task in one["tasks"]),
        attachments=dict(ChainMap(*(one.get("attachments", {}) for one in reversed(loaded)))),
    )

    def make(before: "Benchmark | None") -> "Benchmark":
        if whole is not None:
            return whole
        if before is None:
            raise NotFound(f"all versions of {slug} were deleted; `--file FILE.yaml` publishes the next one")
        made = parse_benchmark(apply_changes(before, changes), slug)
        _note_replaced_files(before, made)
        select_tasks(made, ())
        return made

    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        before = at.benchmarks.library.newest(tenant, slug)

        async def publish() -> "BenchmarkView":
            record = at.store.recorder.record
            return await at.benchmarks.library.edit(tenant, COMMAND_LINE, slug, make, record=record, base=base)

        view = run_until_interrupted(publish())
    if as_json:
        print_json(view.to_json())
    else:
        say(f"{view.benchmark}@{view.version}")
        if view.version <= before:
            note("nothing has changed, so no version was published")
    return ExitCode.PASSED


def _note_replaced_files(before: "Benchmark", after: "Benchmark") -> None:
    """Say which files of seeds have other content now; tasks that the edit does not name may use them too."""
    for name in sorted(before.attachments.keys() & after.attachments.keys()):
        if before.attachments[name] != after.attachments[name]:
            note(f"the file {name} is replaced for every task whose seed names it")


@click.command()
@click.argument("name", metavar="SLUG[@V]")
@tenant_option
@store_options
@config_option
@json_option
def delete(
    *, name: str, tenant: str, data: str | None, database_url: str | None, config: str | None, as_json: bool
) -> int:
    """Hide a version of a benchmark, or all of its versions.

    It is not listed and not run any more. Its runs stay on record with their version, and can be shown, compared and
    judged again. Refused while task runs of it have not ended.
    """
    from meruit.cli.shared.benchmark_runs import run_until_interrupted
    from meruit.cli.shared.benchmark_session import open_session
    from meruit.cli.shared.contracts import command_line_actor
    from meruit.cli.views.benchmark import pluralize

    command_line_actor(tenant)
    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        found = run_until_interrupted(at.benchmarks.delete(tenant, name))
    if as_json:
        print_json(found.to_json())
        return ExitCode.PASSED
    say(", ".join(f"{found.benchmark}@{version}" for version in found.versions))
    if found.benchmark_runs:
        note(f"{pluralize(found.benchmark_runs, 'benchmark run')} of it stay on record, with their version")
    return ExitCode.PASSED
