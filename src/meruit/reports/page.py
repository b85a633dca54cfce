"""A report as one HTML file without scripts or external files, for phones, dark mode and paper."""

from collections.abc import Callable
from functools import cache
from importlib.resources import files

from meruit.reports import sections
from meruit.reports.markup import Child, Markup, join_markup, tag, void_tag
from meruit.reports.number_format import UNKNOWN, format_share
from meruit.reports.report import Report

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page may load nothing."""
PARTS: tuple[tuple[str, str, Callable[[Report], Child]], ...] = (
    ("leaderboard", "Leaderboard", sections.leaderboard),
    ("front", "Cost against score", sections.front),
    ("pairs", "Agents against each other", sections.pairs),
    ("exclusions", "Who is not counted", sections.exclusions),
    ("tries", "Several tries", sections.tries),
    ("steps", "Tokens per step", sections.steps),
    ("observations", "How runs were verified", sections.observations),
    ("waterfall", "From local to billed", sections.waterfall),
    ("ledger", "Ledger", sections.ledger),
    ("tasks", "Task by task", sections.tasks),
    ("excluded", "Every excluded run", sections.exclusion_list),
    ("methods", "How it was computed", sections.methods),
)
"""The anchor, the heading and the content of each section, in order."""


def render(report: Report) -> bytes:
    """Render the page; the same report gives the same bytes."""
    head = tag(
        "head",
        void_tag("meta", charset="utf-8"),
        void_tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void_tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        void_tag("meta", name="color-scheme", content="light dark"),
        void_tag("meta", name="referrer", content="no-referrer"),
        tag("title", report.question),
        tag("style", Markup(_style())),
    )
    body = tag(
        "body",
        _header(report),
        tag("main", [tag("section", tag("h2", title), part(report), id=name) for name, title, part in PARTS]),
        _footer(report),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


@cache
def _style() -> str:
    return files("meruit.reports").joinpath("report.css").read_text(encoding="utf-8")


def _header(report: Report) -> Markup:
    out = report.runs - report.verified
    prices = [
        tag("div", f"{one.source} {one.version}, {one.runs:,} runs, sha256 ", tag("code", one.sha256[:16]))
        for one in report.prices
    ]
    policy = ", ".join(f"{one:g}" for one in report.intervals_min)
    facts: dict[str, Child] = {
        "Population": (
            f"{report.runs:,} runs of {len(report.agents):,} agents over {report.tasks:,} tasks; {report.finished:,} "
            f"finished, {report.verified:,} verified; {report.tasks_compared:,} tasks where every agent is verified"
        ),
        "Excluded": join_markup(
            f"{out:,} of {report.runs:,} runs ({format_share(out / report.runs)}) are excluded from tokens and cost: ",
            tag("a", "by reason", href="#exclusions"),
            ", ",
            tag("a", "one by one", href="#excluded"),
        ),
        "Cost": f"{report.cost}, in {report.currency}; of verified runs only",
        "Prices": prices or "no verified run has a frozen price",
        "Policy": f"two equal observations at least {policy} minutes apart, complete, at the highest count",
        "As of": UNKNOWN if report.as_of is None else f"{report.as_of:%Y-%m-%d %H:%M:%S} UTC",
        "Digest": tag("code", report.digest),
        "Made again by": tag("code", report.command) if report.command else UNKNOWN,
    }
    notes = tag("aside", tag("strong", "Before you rely on it"), sections.bullet_list(report.notes), class_="notes")
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in PARTS]
    return tag(
        "header",
        tag("h1", report.question),
        tag("dl", [[tag("dt", name), tag("dd", fact)] for name, fact in facts.items()], class_="facts"),
        notes if report.notes else None,
        tag("nav", tag("ul", links), aria_label="Sections"),
    )


def _footer(report: Report) -> Markup:
    return tag(
        "footer",
        tag(
            "p",
            f"{report.made_by}. The same runs give the same bytes; report.json has the same numbers.",
            class_="soft",
        ),
    )
