"""`meruit schema`: JSON Schemas of the file formats."""

import json
from typing import Literal

import click

from meruit.cli.terminal import ExitCode, json_option, print_json


@click.command()
@click.argument("which", type=click.Choice(["criteria", "work", "benchmark", "settings", "result"]))
@json_option
def schema(*, which: Literal["criteria", "work", "benchmark", "settings", "result"], as_json: bool) -> int:
    """Print the JSON Schema of a file format."""
    # Imported here so that --help is quick.
    from meruit.app import build_json_schema

    text = json.dumps(build_json_schema(which), indent=None if as_json else 2, ensure_ascii=False)
    print_json(text.encode())
    return ExitCode.PASSED
