"""`meruit governance`: the rules that judge whether an outcome is plausible, and how well they work."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import ExitCode, format_cell, json_option, note, print_json, print_table, say, show_progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meruit.governance.attack_trial import AttackTrial
    from meruit.governance.simulation.trial import RuleTrial, TrialReport

MAX_OUTCOMES = 1_000_000


@click.group()
def governance() -> None:
    """List the plausibility rules and test them on a simulation."""


@governance.command()
@json_option
def rules(*, as_json: bool) -> int:
    """List the rules with their actions and limits."""
    # Imported here so that --help is quick.
    import msgspec

    from meruit.registry import flags

    if as_json:
        fields = ("name", "action", "limits", "summary", "version")
        print_json(msgspec.json.encode([{field: getattr(rule, field) for field in fields} for rule in flags]))
        return ExitCode.PASSED
    rows = [(rule.name, str(rule.action), _limits(rule.limits), rule.summary) for rule in flags]
    print_table(("rule", "action", "limits", "what it finds"), rows)
    return ExitCode.PASSED


def _limits(limits: "Mapping[str, float]") -> str:
    return ", ".join(f"{name} {format_cell(limit)}" for name, limit in limits.items()) or "–"


@governance.command()
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Seed of the simulated market.")
@click.option(
    "--outcomes",
    type=click.IntRange(1, MAX_OUTCOMES),
    default=20_000,
    show_default=True,
    metavar="N",
    help="Number of simulated outcomes.",
)
@json_option
def evaluate(*, seed: int, outcomes: int, as_json: bool) -> int:
    """Test the rules on a simulated market with known cheats.

    Some honest agents look like cheats: specialists who are nearly always right, loyal customers, inexact clocks. A
    true positive is a cheat of the kind that the rule looks for; a false positive is an honest outcome.

    A second table tries attackers who know the rules, and honest behaviour that resembles theirs. Noticed is flagged,
    held or invalidated; stopped is held or invalidated.
    """
    # Only this command needs the simulation.
    from meruit.governance.simulation.trial import trial

    with show_progress("simulating") as progress:
        report = trial(seed, outcomes, progress=progress)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return ExitCode.PASSED


def _print(report: "TrialReport") -> None:
    headings = (
        "rule",
        "action",
        "cheats",
        "flagged",
        "true",
        "false",
        "precision",
        "recall",
        "false per 10,000 honest",
    )
    print_table(headings, [_row(one) for one in report.rules])
    say()
    attack_headings = ("attack", "tries", "noticed", "95 % interval", "stopped", "95 % interval")
    print_table(attack_headings, [_attack_row(one) for one in report.attacks])
    say()
    say(
        f"of {report.honest:,} honest outcomes, {report.held_honest:,} held "
        f"({report.held_honest_per_10k:.1f} per 10,000) and {report.invalidated_honest:,} invalidated "
        f"({report.invalidated_honest_per_10k:.1f} per 10,000)"
    )
    say(
        f"of {report.cheating:,} cheating outcomes, {report.cheating - report.cheating_clear:,} held or invalidated; "
        "the other rules only flag, or withhold a bonus"
    )
    note("the market is simulated; the figures compare rules and limits and say nothing about your agents")


def _attack_row(one: "AttackTrial") -> tuple[str, ...]:
    return (
        *(one.attack, f"{one.tries:,}"),
        *(f"{one.rate:.2f}", f"{one.low:.2f} to {one.high:.2f}"),
        *(f"{one.stopped_rate:.2f}", f"{one.stopped_low:.2f} to {one.stopped_high:.2f}"),
    )


def _row(one: "RuleTrial") -> tuple[str, ...]:
    counts = (one.cheats, one.flagged, one.true_positives, one.false_positives)
    rates = ("–" if rate is None else f"{rate:.3f}" for rate in (one.precision, one.recall))
    return (one.rule, str(one.action), *(f"{count:,}" for count in counts), *rates, f"{one.false_per_10k:.1f}")
