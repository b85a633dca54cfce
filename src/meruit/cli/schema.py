"""`meruit schema`: the shape of the files, for editors and programs."""

import json
from typing import Literal

import click

from meruit.cli.output import ExitCode


@click.command()
@click.argument("which", type=click.Choice(["criteria", "settings", "result"]))
def schema(*, which: Literal["criteria", "settings", "result"]) -> int:
    """Print the JSON Schema of criteria files, of settings, or of results."""
    # Building a schema loads pydantic, which --help should not pay.
    from meruit.app import published_schema

    click.echo(json.dumps(published_schema(which), indent=2, ensure_ascii=False))
    return ExitCode.PASSED
