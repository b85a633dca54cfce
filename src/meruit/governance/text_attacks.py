"""Try disguised copies and planted strings on the rules that compare texts, and honest outputs that resemble them."""

import random
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from meruit.governance.attack_trial import AttackTrial, count_tries, end_of
from meruit.governance.dossier import (
    comparable_texts,
    find_leaked_canaries,
    fingerprints_without_contract,
    most_similar,
)
from meruit.governance.evaluate import apply_rules, prepare_rules
from meruit.governance.fold import rotate_13
from meruit.governance.history import normalise_text
from meruit.governance.resemblance import compare_fingerprints
from meruit.model.governance import Dossier, History, Policy
from meruit.model.work import Work

SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "sta", "ver", "qui", "ton", "bel", "dar", "fo", "gri", "hu", "pe")
WORDS_MIN, WORDS_MAX = 40, 90
LOOK_ALIKE = str.maketrans("aceopxyi", "асеорхуі")
RULES = frozenset({"canary_leak", "reference_copy", "replayed_output", "sybil_output"})

Output = dict[str, Any]
Disguise = Callable[[random.Random, str], Output]


def _in_text(disguise: Callable[[random.Random, str], str]) -> Disguise:
    return lambda rng, text: {"text": disguise(rng, text)}


DISGUISES: dict[str, Disguise] = {
    "as it is": _in_text(lambda _, text: text),
    "in another case": _in_text(lambda _, text: text.upper()),
    "with invisible characters": _in_text(lambda rng, text: _join(rng, text, "\u200b\u2060\u00ad")),
    "with letters that look alike": _in_text(lambda _, text: text.translate(LOOK_ALIKE)),
    "with a space after each letter": _in_text(lambda _, text: " ".join(text)),
    "with other separators": _in_text(lambda _, text: text.replace(" ", "_.").replace("-", "~")),
    "reversed": _in_text(lambda _, text: text[::-1]),
    "in base64": _in_text(lambda _, text: b64encode(text.encode()).decode()),
    "in hex": _in_text(lambda _, text: text.encode().hex()),
    "percent-encoded": _in_text(lambda _, text: "".join(f"%{byte:02x}" for byte in text.encode())),
    "in pieces of a list": lambda _, text: {"parts": [text[start : start + 5] for start in range(0, len(text), 5)]},
    "in another field": lambda rng, text: {"text": _words(rng, 30), "answer": text},
}
"""How a text is hidden in an output."""


def try_text_attacks(seed: int, tries: int, policy: Policy) -> Iterator[AttackTrial]:
    """Hide planted strings, references and earlier outputs in every way; then try honest outputs."""
    rules = [one for one in prepare_rules(policy) if one.rule.name in RULES]

    def count(name: str, dossier_of: Callable[[random.Random], Dossier], *, honest: bool = False) -> AttackTrial:
        # The same texts for the same seed; nothing secret.
        sources = (random.Random(f"{seed} {name} {number}") for number in range(tries))  # noqa: S311
        return count_tries(name, Counter(end_of(apply_rules(rules, dossier_of(rng))) for rng in sources), honest=honest)

    rot13 = _in_text(lambda _, text: rotate_13(text))
    changed: dict[str, Disguise] = {"with a counter": _count_up, "with a word changed": _change_a_word}
    for how, disguise in {**DISGUISES, "in rot13": rot13}.items():
        yield count(f"planted string {how}", partial(_leak, disguise))
    for how, disguise in DISGUISES.items():
        yield count(f"copy of the reference {how}", partial(_reference_copy, disguise))
    for how, disguise in {**DISGUISES, **changed}.items():
        yield count(f"earlier output {how}", partial(_replay, disguise))
    for name, honest in HONEST_TEXTS.items():
        yield count(f"honest: {name}", honest, honest=True)


def _words(rng: random.Random, n: int) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(n))


def _text(rng: random.Random) -> str:
    return _words(rng, rng.randint(WORDS_MIN, WORDS_MAX))


def _join(rng: random.Random, text: str, between: str) -> str:
    return "".join(char + rng.choice(between) for char in text)


def _count_up(rng: random.Random, text: str) -> Output:
    return {"text": f"{text} {rng.randrange(10, 1000)}"}


def _change_a_word(rng: random.Random, text: str) -> Output:
    words = text.split()
    words[rng.randrange(len(words))] = _words(rng, 1)
    return {"text": " ".join(words)}


def _leak(disguise: Disguise, rng: random.Random) -> Dossier:
    canary = f"canary-{rng.randrange(16**10):010x}"
    output = disguise(rng, canary)
    return Dossier(canaries=1, leaked=find_leaked_canaries((canary,), {**output, "more": _text(rng)}))


def _reference_copy(disguise: Disguise, rng: random.Random) -> Dossier:
    reference = _text(rng)
    return _compare_texts(disguise(rng, reference), reference)


def _compare_texts(output: Mapping[str, Any], reference: str) -> Dossier:
    texts = comparable_texts(output)
    chars = max(len(normalise_text(text)) for text in texts)
    return Dossier(output_chars=chars, reference_similarity=most_similar(texts, reference))


def _replay(disguise: Disguise, rng: random.Random) -> Dossier:
    text = _text(rng)
    return _submit_twice({"text": text}, disguise(rng, text))


def _submit_twice(first: Mapping[str, Any], second: Mapping[str, Any]) -> Dossier:
    """The dossier of an output after an earlier one of the same agent for another task."""
    one, other = (fingerprints_without_contract(Work(output=output), by_agent=False) for output in (first, second))
    alike = compare_fingerprints(one, other)
    history = History() if alike is None else History(replayed_in="contract-1", replayed_likeness=alike)
    return Dossier(agent_id="a", output_chars=max(map(len, comparable_texts(second))), history=history)


def _form_letter(rng: random.Random) -> Dossier:
    """A form letter with three fields of its own each time."""
    words = [_words(rng, 20) for _ in range(4)]
    first, second = (
        {"text": " ".join(f"{part} {_words(rng, 1)} {rng.randrange(10_000)}" for part in words[:3]) + words[3]}
        for _ in range(2)
    )
    return _submit_twice(first, second)


def _with_a_notice(rng: random.Random) -> Dossier:
    """A short answer of its own over the same long notice."""
    notice = _text(rng)
    return _submit_twice(*({"text": _words(rng, 8), "notice": notice} for _ in range(2)))


def _other_number(rng: random.Random) -> Dossier:
    """A report in which only the figures differ."""
    parts = [_words(rng, 6) for _ in range(5)]
    return _submit_twice(
        *({"text": " ".join(f"{part} {rng.uniform(-50, 50):.2f}" for part in parts)} for _ in range(2))
    )


def _paraphrase(rng: random.Random) -> Dossier:
    """The content of the reference, one word in eight in other words."""
    words = _text(rng).split()
    paraphrased = [_words(rng, 1) if rng.random() < 1 / 8 else word for word in words]
    return _compare_texts({"text": " ".join(paraphrased)}, " ".join(words))


def _other_canary(rng: random.Random) -> Dossier:
    """An output with ids, hashes and base64 of its own."""
    canary, own = (f"canary-{rng.randrange(16**10):010x}" for _ in range(2))
    output = {"id": own, "digest": f"{rng.randrange(16**64):064x}", "data": b64encode(rng.randbytes(300)).decode()}
    return Dossier(canaries=1, leaked=find_leaked_canaries((canary,), {"text": _text(rng), **output}))


HONEST_TEXTS: dict[str, Callable[[random.Random], Dossier]] = {
    "other texts": lambda rng: _submit_twice({"text": _text(rng)}, {"text": _text(rng)}),
    "form letter": _form_letter,
    "long notice under short answers": _with_a_notice,
    "report with other figures": _other_number,
    "paraphrase of the reference": _paraphrase,
    "ids, hashes and base64 of its own": _other_canary,
}
"""Outputs that resemble copies."""
