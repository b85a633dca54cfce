"""Searches for what hidden criteria ask for, and honest agents that resemble them.

The tries are compared as the store compares them. Nothing limits their number here; the budget of an agent does.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from meruit.governance.attack_trial import AttackTrial, count_tries, end_of
from meruit.governance.evaluate import PreparedRule, apply_rules, prepare_rules
from meruit.governance.history import TryMark, add_try, find_near_tries, word_marks
from meruit.model.governance import Dossier, History, Policy

VOCABULARY = tuple(f"{first}{middle}{last}" for first in "bdfgklmnprst" for middle in "aeiou" for last in "lmnrst")
HIDDEN = 3
MAX_QUESTIONS = 60
COMPARED = 20
"""Earlier tries that are compared."""

Questions = Iterator[tuple[str, bool]]
"""Outputs in their order, and whether each passes."""


def try_probing(seed: int, tries: int, policy: Policy) -> Iterator[AttackTrial]:
    """Try every search so often."""
    rules = [one for one in prepare_rules(policy) if one.rule.name == "probing"]
    for names, honest in ((SEARCHES, False), (HONEST_AGENTS, True)):
        for name, ask in names.items():
            # The same searches for the same seed; nothing secret.
            ends = Counter(_end_of(rules, ask(random.Random(f"{seed} {name} {number}"))) for number in range(tries))  # noqa: S311
            yield count_tries(f"honest: {name}" if honest else name, ends, honest=honest)


def _end_of(rules: Sequence[PreparedRule], questions: Questions) -> str:
    """How the worst of the tries ended."""
    tries: list[TryMark] = []
    worst = "clear"
    for _, (text, passes) in zip(range(MAX_QUESTIONS), questions, strict=False):
        words = word_marks(text)
        found = find_near_tries(tries, words)
        tries = add_try(tries, words, passed=passes)[-COMPARED:]
        dossier = Dossier(agent_id="a", history=History(near_tries=found.near, near_tries_failed=found.failed))
        worst = max(worst, end_of(apply_rules(rules, dossier)), key=("clear", "flagged", "stopped").index)
    return worst


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(VOCABULARY, k=count))


def _by_halves(rng: random.Random, *, first: int) -> Questions:
    """Leave out half of the words again and again, by the count of hidden words that the score reveals.

    `first` is the part that is halved next: the newest (-1), or the oldest (0), which goes on level by level.
    """
    words = rng.sample(VOCABULARY, len(VOCABULARY))
    hidden = {*rng.sample(words, HIDDEN)}
    waiting = [words]
    while waiting:
        part = waiting.pop(first)
        if len(part) < 2:
            continue
        halves = part[: len(part) // 2], part[len(part) // 2 :]
        yield " ".join(halves[0]), hidden <= {*halves[0]}
        waiting += [half for half in halves if hidden & {*half}]


def _word_by_word(rng: random.Random) -> Questions:
    """Add one more word to the same text each time."""
    text, hidden = _words(rng, 40), {*rng.sample(VOCABULARY, HIDDEN)}
    found: list[str] = []
    for word in rng.sample(VOCABULARY, len(VOCABULARY)):
        yield f"{text} {' '.join(found)} {word}", hidden <= {*found, word}
        found += [word] if word in hidden else []


def _threshold(rng: random.Random) -> Questions:
    """Search for a limit with another figure in the same sentence."""
    low, high, limit = 0.0, 1_000.0, rng.uniform(0, 1_000)
    while high - low > 0.5:
        middle = (low + high) / 2
        yield f"We estimate the total of all charges at {middle:.2f} for this year.", abs(middle - limit) < 0.5
        low, high = (middle, high) if middle < limit else (low, middle)


def _reviser(rng: random.Random) -> Questions:
    """Revise a text four times before it passes, then go on to the next task."""
    for _ in range(12):
        words = _words(rng, 60).split()
        for number in range(5):
            yield " ".join(words), number == 4
            for place in rng.sample(range(60), 8):
                words[place] = rng.choice(VOCABULARY)


def _form(rng: random.Random, passes: float) -> Questions:
    """Answer by a form, with names and figures of its own each time."""
    form = _words(rng, 30)
    while True:
        yield f"{form} {_words(rng, 4)} {rng.randrange(10_000)}", rng.random() < passes


def _short(rng: random.Random) -> Questions:
    """Answer in one or two words, one time in four wrongly."""
    while True:
        yield rng.choice(("yes", "no", "not known")), rng.random() < 0.75


def _other_texts(rng: random.Random) -> Questions:
    """Fail half of the time, with another text each time."""
    while True:
        yield _words(rng, 60), rng.random() < 0.5


def _lists(rng: random.Random) -> Questions:
    """Answer with a list of any length, nine times in ten wrongly."""
    while True:
        yield " ".join(rng.sample(VOCABULARY, rng.randint(5, 60))), rng.random() < 0.1


def _unspaced(rng: random.Random) -> Questions:
    """Answer in a script without spaces, where each sentence is one word, nine times in ten wrongly."""
    while True:
        sentences = ("".join(rng.choices(VOCABULARY, k=5)) for _ in range(rng.randint(1, 40)))
        yield " ".join(sentences), rng.random() < 0.1


SEARCHES: dict[str, Callable[[random.Random], Questions]] = {
    "search for hidden words by halves": partial(_by_halves, first=-1),
    "search for hidden words by halves, level by level": partial(_by_halves, first=0),
    "search for hidden words, one at a time": _word_by_word,
    "search for a limit by figures": _threshold,
}
HONEST_AGENTS: dict[str, Callable[[random.Random], Questions]] = {
    "revises each text four times": _reviser,
    "answers by a form": lambda rng: _form(rng, 0.85),
    "answers by a form, half of them wrong": lambda rng: _form(rng, 0.5),
    "answers in one word": _short,
    "fails half of its texts": _other_texts,
    "fails most of its lists": _lists,
    "fails most of its texts without spaces": _unspaced,
}
