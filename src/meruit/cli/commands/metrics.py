"""`meruit metrics`: the metrics that criteria can name."""

import click

from meruit.cli.terminal import ExitCode, json_option, print_json, print_table, say


@click.command()
@click.argument("name", required=False)
@json_option
def metrics(*, name: str | None, as_json: bool) -> int:
    """List the metrics, or explain one with its parameters."""
    # Imported here so that --help is quick.
    import msgspec

    from meruit.registry import metrics as registry

    chosen = [registry.get(name)] if name is not None else list(registry)
    if as_json:
        fields = ("name", "family", "kind", "summary", "params", "provenance", "version")
        rows = [{field: getattr(metric, field) for field in fields} for metric in chosen]
        print_json(msgspec.json.encode(rows if name is None else rows[0]))
    elif name is not None:
        metric = chosen[0]
        say(f"{metric.name} ({metric.kind}, {metric.provenance}): {metric.summary}")
        for param, meaning in metric.params.items():
            say(f"  params.{param}: {meaning}")
    else:
        rows_shown = [(metric.name, str(metric.kind), str(metric.provenance), metric.summary) for metric in chosen]
        print_table(("metric", "type", "provenance", "what it is"), rows_shown)
    return ExitCode.PASSED
