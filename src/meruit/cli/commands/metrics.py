"""`meruit metrics`: the metrics that criteria can name."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from meruit.cli.terminal import ExitCode, config_option, json_option, print_json, print_table, say
from meruit.cli.views.criterion import print_criterion

if TYPE_CHECKING:
    from meruit.verify.catalogue import Catalogue


class MetricRow(msgspec.Struct, frozen=True):
    """A metric as it is listed."""

    name: str
    family: str
    """Its family, or the extractor of the settings that computes it."""
    kind: str | None
    """None where an extractor of your own computes it: the criterion says what it is."""
    summary: str
    params: dict[str, str]
    provenance: str
    version: str
    enabled: bool
    disabled_by: str | None
    """The setting that switches it off."""


@click.command()
@click.argument("name", required=False)
@config_option
@json_option
def metrics(*, name: str | None, config: str | None, as_json: bool) -> int:
    """List the metrics, or explain one with its parameters.

    Those of your own extractors are among them. The state says what the settings switch off.
    """
    # Imported here so that --help is quick.
    import msgspec

    from meruit.app import build_engine
    from meruit.config import Settings
    from meruit.documents.metric_defaults import example_criterion
    from meruit.registry import metrics as registry

    rows = _list_metrics(build_engine(Settings.load(config), governed=False).catalogue)
    if name is not None and name not in rows:
        # Raises, with the nearest name.
        registry.get(name)
    chosen = [*rows.values()] if name is None else [rows[name]]
    if as_json:
        found: list[dict[str, Any]] = [msgspec.structs.asdict(row) for row in chosen]
        print_json(msgspec.json.encode(found if name is None else found[0]))
    elif name is not None:
        _explain(chosen[0])
        if (metric := registry.find(name)) is not None:
            say("\ncriteria:")
            print_criterion(example_criterion(metric))
    else:
        headings = ("metric", "type", "provenance", "state", "what it is")
        shown = [(row.name, row.kind or "–", row.provenance, _state(row), row.summary) for row in chosen]
        print_table(headings, shown)
        for why in dict.fromkeys(row.disabled_by for row in chosen if row.disabled_by is not None):
            say(f"off: {', '.join(row.name for row in chosen if row.disabled_by == why)}: {why}")
    return ExitCode.PASSED


def _list_metrics(catalogue: "Catalogue") -> dict[str, MetricRow]:
    """Every metric by name: the installed ones, and those of the settings' own extractors."""
    from meruit.metrics.embedding_similarity import METRIC, SUMMARY, EmbeddingExtractor
    from meruit.model.kinds import MetricType
    from meruit.registry import metrics as registry

    rows = {
        metric.name: MetricRow(
            name=metric.name,
            family=metric.family,
            kind=str(metric.kind),
            summary=metric.summary,
            params=dict(metric.params),
            provenance=str(metric.provenance),
            version=metric.version,
            enabled=metric.name not in catalogue.switched_off,
            disabled_by=catalogue.switched_off.get(metric.name),
        )
        for metric in registry
    }
    if METRIC in catalogue.switched_off:
        rows[METRIC] = MetricRow(
            name=METRIC,
            family="embedding",
            kind=str(MetricType.PERCENTAGE),
            summary=SUMMARY,
            params={},
            provenance=str(EmbeddingExtractor.provenance),
            version=EmbeddingExtractor.version,
            enabled=False,
            disabled_by=catalogue.switched_off[METRIC],
        )
    for name in catalogue.names():
        owner = catalogue.owner_of(name)
        if owner is not None:
            extractor = catalogue.extractors[owner]
            summary = f"computed by the extractor {owner!r} of the settings"
            provenance, version = str(extractor.provenance), str(extractor.version)
            rows[name] = MetricRow(
                name=name,
                family=owner,
                kind=None,
                summary=summary,
                params={},
                provenance=provenance,
                version=version,
                enabled=True,
                disabled_by=None,
            )
    return dict(sorted(rows.items()))


def _state(row: MetricRow) -> str:
    return "on" if row.enabled else "off"


def _explain(row: MetricRow) -> None:
    say(f"{row.name} ({row.kind or 'any type'}, {row.provenance}): {row.summary}")
    for param, meaning in row.params.items():
        say(f"  params.{param}: {meaning}")
    if row.disabled_by is not None:
        say(f"  switched off: {row.disabled_by}")
