"""Replies to customers, as two versions of an agent would write them: the cases of the demo's evaluations.

The replies are made of sentences by chance with a fixed seed, so that every demo has the same cases. The older agent
forgets the date in replies about refunds. The newer one names it, and writes longer.
"""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from meruit.evaluations.evaluation import Case, CaseError

SEED = 40711
CRITERIA: dict[str, Any] = {
    "criteria": [
        {
            "id": "promises a date",
            "metric": "matches_pattern",
            "metric_type": "contains",
            "comparison": "contains_all",
            "threshold": [r"\b\d{1,2} (November|December)\b"],
            "bonus": 0.05,
            "penalty": 0.05,
        },
        {
            "id": "says what ours say",
            "metric": "rougeL",
            "metric_type": "rouge_score",
            "comparison": "gte",
            "threshold": 0.5,
            "bonus": 0.03,
        },
        {
            "id": "is short",
            "metric": "word_count",
            "metric_type": "count",
            "comparison": "in_range",
            "threshold": {"min": 15, "max": 60},
        },
        {
            "id": "is quick",
            "metric": "latency_ms",
            "metric_type": "latency",
            "comparison": "lte",
            "threshold": 4000,
            "required": False,
            "bonus": 0.02,
        },
    ],
    "aggregation": "all",
}


class Topic(msgspec.Struct, frozen=True):
    """What customers write about, and what a good reply says."""

    tag: str
    asks: str
    answer: str
    dated: str
    vague: str


TOPICS = (
    Topic(
        tag="refund",
        asks="I sent the {thing} back on {day} November. Where is my money? Order {order}.",
        answer="Thank you for your message. We received the {thing} and checked it.",
        dated="The refund of {price} EUR reaches your account by {due} November.",
        vague="I have passed your request to our team and they will be in touch soon.",
    ),
    Topic(
        tag="delivery",
        asks="My order {order} with the {thing} has not arrived. It was due on {day} November.",
        answer="Thank you for writing. Your parcel with the {thing} left our warehouse yesterday.",
        dated="It arrives on {due} November before noon.",
        vague="It arrives as soon as the carrier can make it.",
    ),
    Topic(
        tag="account",
        asks="How do I change the address of my account? I move on {day} November. Order {order}.",
        answer="You can change the address under Settings, Profile. Orders that are on their way keep the old one.",
        dated="The new address is used from {due} November on.",
        vague="The new address is used for later orders.",
    ),
    Topic(
        tag="complaint",
        asks="The {thing} of order {order} arrived broken on {day} November. I am not pleased.",
        answer="We are sorry that the {thing} arrived with a crack. Please keep it for the carrier.",
        dated="A new one leaves today and is with you by {due} November.",
        vague="A new one is on its way to you.",
    ),
)
THINGS = ("kettle", "lamp", "toaster", "radio", "garden chair", "tent", "camera", "suitcase")
EXTRA = (
    "If no one is at home, it goes to the pick-up point at the station, which is open from six in the morning until "
    "eleven at night on every day of the week, and where they keep it for you for up to ten working days."
)


class Habits(msgspec.Struct, frozen=True):
    """How often an agent does what."""

    forgets_date: float
    """In replies about refunds; elsewhere a fifth as often."""
    writes_long: float
    slow: float
    fails: float


AGENTS = {
    "heron-2": Habits(forgets_date=0.5, writes_long=0.01, slow=0.05, fails=0.02),
    "heron-3": Habits(forgets_date=0.07, writes_long=0.04, slow=0.05, fails=0.01),
    "heron-4": Habits(forgets_date=0.05, writes_long=0.03, slow=0.03, fails=0.01),
}


def make_cases(agent: str, number: int) -> Iterator[Case]:
    """The cases of an agent: the same customers for every agent, and replies of its own."""
    habits = AGENTS[agent]
    customers, replies = random.Random(SEED), random.Random(f"{SEED} {agent}")  # noqa: S311 - the same in every demo
    for place in range(1, number + 1):
        topic = customers.choice(TOPICS)
        day = customers.randint(2, 12)
        words = {
            "thing": customers.choice(THINGS),
            "order": f"88-{customers.randint(1000, 9999)}",
            "day": day,
            "due": day + 9,
            "price": f"{customers.randint(8, 140)}.{customers.choice(('50', '90', '00'))}",
        }
        question, answer, dated, vague = (
            text.format(**words) for text in (topic.asks, topic.answer, topic.dated, topic.vague)
        )
        reference = f"{answer} {dated}"
        forgets = replies.random() < habits.forgets_date * (1.0 if topic.tag == "refund" else 0.2)
        extra = f" {EXTRA}" if replies.random() < habits.writes_long else ""
        text = f"{answer} {vague if forgets else dated}{extra}"
        took = replies.uniform(4_100, 7_000) if replies.random() < habits.slow else replies.uniform(900, 3_600)
        failed = replies.random() < habits.fails
        yield Case(
            id=f"{topic.tag}-{place:04}",
            input={"message": question, "reference": reference},
            output=None if failed else {"text": text, "language": "en", "order": {"id": words["order"]}},
            metadata={"duration_ms": round(took), "model": agent},
            tags={"topic": topic.tag},
            error=CaseError.TARGET_TIMEOUT if failed else None,
            error_message="the agent did not answer within 30 s" if failed else "",
            cost_micros=None if failed else 3_000 + 11 * len(text),
        )
