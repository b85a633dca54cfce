"""`meruit doctor`: test the sandbox on this machine."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import (
    ExitCode,
    config_option,
    escape_control_characters,
    json_option,
    note,
    paint,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from meruit.model.kinds import Tier
    from meruit.sandbox.selftest import Examination


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Show every trial, not only the failed ones.")
@config_option
@json_option
def doctor(*, verbose: bool, config: str | None, as_json: bool) -> int:
    """Test the sandbox on this machine with hostile code.

    Exit codes: 0 every tier is ready, 1 a tier is not ready.
    """
    # Imported here so that --help is quick.
    import msgspec

    from meruit.app import custom_code
    from meruit.config import Settings
    from meruit.model.kinds import Tier
    from meruit.sandbox.selftest import describe_machine, examine

    policy = custom_code(Settings.load(config))
    allowed: frozenset[Tier] = policy.tiers if policy is not None else frozenset()
    examined = []
    for tier in Tier:
        note(f"testing {tier} …")
        examined.append(examine(tier))
    if as_json:
        found = [msgspec.to_builtins(one) | {"allowed": one.tier in allowed} for one in examined]
        print_json(msgspec.json.encode({"machine": describe_machine(), "tiers": found}))
    else:
        say(describe_machine())
        say()
        _print(examined, allowed, verbose=verbose)
    return ExitCode.PASSED if all(one.ready for one in examined) else ExitCode.NOT_PASSED


def _print(examined: "list[Examination]", allowed: "frozenset[Tier]", *, verbose: bool) -> None:
    print_table(
        ("tier", "verdict", "allowed", "trials held", "engine"),
        [
            (
                str(one.tier),
                "ready" if one.ready else "not ready",
                "yes" if one.tier in allowed else "no",
                f"{sum(trial.held for trial in one.trials)} of {len(one.trials)}",
                one.engine,
            )
            for one in examined
        ],
        painted=1,
    )
    for one in examined:
        shown = [trial for trial in one.trials if verbose or not trial.held]
        if shown:
            say()
            say(f"{one.tier}:")
            print_table(
                ("trial", "held", "result"),
                [(trial.name, "yes" if trial.held else "NO", trial.saw) for trial in shown],
            )
        if one.reason:
            say(f"{paint('error')}: {one.tier}: {escape_control_characters(one.reason)}")
    say()
    if all(one.ready for one in examined):
        say("the sandbox holds: nothing was read, written, started or left behind")
    else:
        say("criteria that need a tier that is not ready end inconclusive; no other tier replaces it")
