"""The trust score of an agent as text."""

from meruit.cli.terminal import print_table, say
from meruit.contracts.trust import TrustRecords, TrustScore


def print_trust(found: TrustScore) -> None:
    """Print the score with its interval, what it was computed from, and what was left out."""
    low, high = (f"{100 * bound:.1f}" for bound in (found.interval.low, found.interval.high))
    between = f"{low} to {high} % with {100 * found.interval.confidence:g} % confidence"
    if found.score is None:
        say(f"no score: none of the agent's recorded work is decided; its rate may be {between}")
    else:
        say(f"score {100 * found.score:.1f} % ({found.exact} delivered), {between}")
    if found.records is TrustRecords.FEW:
        say(f"few records: fewer than {found.few_below} works are decided, so the interval is wide")
    rows = [
        ("delivered", f"{found.inputs.delivered:,}", "yes"),
        ("not delivered", f"{found.inputs.not_delivered:,}", "yes"),
        *((name.replace("_", " "), f"{number:,}", "no") for name, number in found.inputs.left_out.items() if number),
    ]
    print_table(("work", "number", "counts"), rows)
    say(f"computed by {found.method.name} version {found.method.version}: {found.method.score}")
