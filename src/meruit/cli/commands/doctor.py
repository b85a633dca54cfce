"""`meruit doctor`: test the sandbox on this machine, and say how the audit log stands."""

from contextlib import suppress
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
    store_options,
)

if TYPE_CHECKING:
    from meruit.audit.standing import LogStanding
    from meruit.config import Settings
    from meruit.model.kinds import Tier
    from meruit.sandbox.selftest import Examination


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Show every trial, not only the failed ones.")
@config_option
@store_options
@json_option
def doctor(*, verbose: bool, config: str | None, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Test the sandbox, and show how the audit log stands.

    Where there is a store, also shows whether its key may sign, its root key, and what each configured witness cosigned
    last. Exit codes: 0 every tier is ready and the log is signed, 1 not.
    """
    # Imported here so that --help is quick.
    import msgspec

    from meruit.app import custom_code
    from meruit.config import Settings
    from meruit.model.kinds import Tier
    from meruit.sandbox.selftest import describe_machine, examine

    settings = Settings.load(config)
    policy = custom_code(settings)
    allowed: frozenset[Tier] = policy.tiers if policy is not None else frozenset()
    examined = []
    for tier in Tier:
        note(f"testing {tier} …")
        examined.append(examine(tier))
    standing = _describe_log(settings, data, database_url)
    if as_json:
        found = [msgspec.to_builtins(one) | {"allowed": one.tier in allowed} for one in examined]
        print_json(msgspec.json.encode({"machine": describe_machine(), "tiers": found, "audit_log": standing}))
    else:
        say(describe_machine())
        say()
        _print(examined, allowed, verbose=verbose)
        if standing is not None:
            _print_log(standing)
    signs = standing is None or standing.signing == "ok"
    return ExitCode.PASSED if signs and all(one.ready for one in examined) else ExitCode.NOT_PASSED


def _describe_log(settings: "Settings", data: str | None, database_url: str | None) -> "LogStanding | None":
    """The state of the log; None without a store."""
    from meruit.audit.standing import describe_log
    from meruit.cli.shared.open_store import open_records
    from meruit.errors import KeptCheckpointDamaged, KeyNotAdmitted, LogRewritten, StoreError

    try:
        with open_records(data, database_url) as store:
            # What forbids writing is part of what is shown.
            with suppress(KeyNotAdmitted, LogRewritten, KeptCheckpointDamaged):
                store.require_known_log()
            return describe_log(store, settings.audit.known_witnesses)
    except StoreError:
        if data is not None or database_url is not None:
            raise
        return None


def _print_log(standing: "LogStanding") -> None:
    from meruit.model.time import from_micros

    say()
    signs = "may sign" if standing.signing == "ok" else f"may not sign: {standing.signing}"
    say(f"audit log: {standing.entries:,} entries; the key of this folder {signs}")
    match standing.root:
        case "none":
            say("root key: none; without one, a lost or stolen signing key cannot be replaced (`meruit audit root`)")
        case "late":
            say("root key: installed after other entries; make sure that it is yours, and publish it to readers")
        case _:
            say("root key: as old as the log")
    if not standing.witnesses:
        say("witnesses: none configured (audit.witnesses); only readers who follow the log see a rollback")
    for one in standing.witnesses:
        if one.entries is None or one.time_s is None:
            say(escape_control_characters(f"witness {one.name}: cosigned none of the newest checkpoints"))
            continue
        at = from_micros(one.time_s * 1_000_000).isoformat()
        say(escape_control_characters(f"witness {one.name}: cosigned {one.entries:,} entries at {at}"))


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
