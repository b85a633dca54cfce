"""`meruit eval`: evaluations of many cases."""

import click

from meruit.cli.evaluations.browse import compare_command, list_command, show_command
from meruit.cli.evaluations.export import export_command
from meruit.cli.evaluations.page import page_command
from meruit.cli.evaluations.run import run_command


@click.group("eval")
def eval_group() -> None:
    """Judge many outputs at once and compare evaluations."""


for _command in (run_command, list_command, show_command, compare_command, export_command, page_command):
    eval_group.add_command(_command)
