"""Help texts: every summary fits one line of 80 columns, every option says what it sets."""

import re
from collections.abc import Iterator

import click
import pytest

from meruit.cli import COMMANDS, meruit

COLUMNS = 80
WIDTH = COLUMNS - 2
"""As wide as click writes in a terminal of 80 columns."""


def groups() -> Iterator[click.Group]:
    """`meruit` itself, then every group below it."""
    yield meruit
    for _, command in every_command():
        if isinstance(command, click.Group):
            yield command


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command and group of the tree, with its path."""
    context = click.Context(meruit)
    for name in COMMANDS:
        command = meruit.get_command(context, name)
        assert command is not None
        yield from tree(name, command)


def tree(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from tree(f"{path} {name}", inner)


def options() -> Iterator[tuple[str, click.Option]]:
    for path, command in every_command():
        yield from ((f"{path} {one.opts[0]}", one) for one in command.params if isinstance(one, click.Option))


def summary_of(command: click.Command) -> str:
    """The whole first sentence of a help text, as no list may cut it."""
    return command.get_short_help_str(limit=10_000)


def test_the_list_of_commands_has_the_summary_of_each() -> None:
    context = click.Context(meruit)
    loaded = {name: meruit.get_command(context, name) for name in COMMANDS}
    assert {name: one and summary_of(one) for name, one in loaded.items()} == COMMANDS


def help_of(command: click.Command, name: str | None = None) -> list[str]:
    # A command keeps the help option of the first context that asks for it, so it must be the real one.
    names = meruit.context_settings["help_option_names"]
    context = click.Context(command, info_name=name or command.name, terminal_width=WIDTH, help_option_names=names)
    return command.get_help(context).splitlines()


@pytest.mark.parametrize("group", [*groups()], ids=lambda group: group.name)
def test_every_summary_fits_one_line_of_80_columns(group: click.Group) -> None:
    lines = help_of(group)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found = [line for line in lines if re.match(rf"  {re.escape(name)}  ", line)]
        assert [re.split(r"\s{2,}", line.strip(), maxsplit=1)[1] for line in found] == [summary_of(command)]
        assert len(found[0]) <= COLUMNS


@pytest.mark.parametrize(("path", "command"), [*every_command()], ids=lambda one: one if isinstance(one, str) else "")
def test_every_summary_is_one_plain_sentence(path: str, command: click.Command) -> None:
    summary = summary_of(command)
    assert re.fullmatch(r"[A-Z].*\.", summary), path
    first = (command.help or "").strip().split("\n\n")[0]
    assert summary == " ".join(first.split()), "the first paragraph is the summary"


@pytest.mark.parametrize(("path", "option"), [*options()], ids=lambda one: one if isinstance(one, str) else "")
def test_every_option_says_what_it_sets(path: str, option: click.Option) -> None:
    assert option.help, path
    assert option.help.endswith((".", ").")), path
    assert option.help[0].isupper() or option.help.startswith(("uphold", "`")), path
    if not option.is_flag and not isinstance(option.type, click.Choice):
        assert option.metavar or not isinstance(option.type, click.types.StringParamType), f"{path} has no form"
