"""The ways to cut a text into the words that BLEU and ROUGE compare; `params.tokenizer` names one.

`13a`, `intl`, `zh` and `char` cut as sacrebleu's tokenizers of these names do, `rouge` as rouge-score's does.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping

import msgspec

from meruit.metrics.support.bleu import words_13a
from meruit.metrics.support.rouge import words_alphanumeric
from meruit.metrics.support.unicode_words import is_word_of_its_own, words_unicode


class Tokenizer(msgspec.Struct, frozen=True):
    """A way to cut a text into words."""

    name: str
    cut: Callable[[str], list[str]]
    needs_spaces: bool = False
    """Whether it leaves a sentence whole in a script that is written without spaces."""


def words_char(text: str) -> list[str]:
    """Every character but white space."""
    return [*"".join(text.split())]


def words_intl(text: str) -> list[str]:
    """The words of a text as mteval-v14 cuts it: punctuation apart, except inside numbers, and symbols apart."""
    line = text.rstrip()
    by_class: dict[str, str] = {"N": "", "P": "", "S": ""}
    for char in sorted({*line}):
        category = unicodedata.category(char)[0]
        if category in by_class:
            by_class[category] += char
    # A class of all marks takes long to build, so only those in the text are used.
    marks, symbols = re.escape(by_class["P"]), re.escape(by_class["S"])
    if marks:
        numbers = re.escape(by_class["N"])
        not_number = f"[^{numbers}]" if numbers else "."
        line = re.sub(f"({not_number})([{marks}])", r"\1 \2 ", line, flags=re.DOTALL)
        line = re.sub(f"([{marks}])({not_number})", r" \1 \2", line, flags=re.DOTALL)
    if symbols:
        line = re.sub(f"([{symbols}])", r" \1 ", line)
    return line.split()


# What sacrebleu takes for Chinese. Two of its ranges are written with five digits after \u, which Python reads as a
# character and a digit; they stand here as they act. Compiled, and remembered, when a text is first cut so.
_CHINESE = (
    "([\u3400-\u4db5\u4e00-\u9fbb\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9\u2001-\u2a6d\u2f81-\u2fa1\uff00-\uffef"
    "\u2e80-\u2eff\u3000-\u303f\u31c0-\u31ef\u2f00-\u2fdf\u2ff0-\u2fff\u3100-\u312f\u31a0-\u31bf\ufe10-\ufe1f"
    "\ufe30-\ufe4f\u3200-\u33ff])"
)
_WESTERN = (
    (r"([\{-\~\[-\` -\&\(-\+\:-\@\/])", r" \1 "),
    (r"([^0-9])([\.,])", r"\1 \2 "),
    (r"([\.,])([^0-9])", r" \1 \2"),
    (r"([0-9])(-)", r"\1 \2 "),
)


def words_zh(text: str) -> list[str]:
    """Each Chinese character apart, and the rest nearly as 13a cuts it."""
    line = re.sub(_CHINESE, r" \1 ", text.strip())
    for pattern, apart in _WESTERN:
        line = re.sub(pattern, apart, line)
    return line.split()


TOKENIZERS: Mapping[str, Tokenizer] = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer("13a", words_13a, needs_spaces=True),
        Tokenizer("rouge", words_alphanumeric),
        Tokenizer("unicode", words_unicode),
        Tokenizer("intl", words_intl, needs_spaces=True),
        Tokenizer("zh", words_zh),
        Tokenizer("char", words_char),
    )
}


def letters_lost(text: str, words: list[str]) -> list[str]:
    """The letters of a text that are in none of its words, each once; markup that 13a drops does not count."""
    remaining = {*"".join(words)}
    return sorted(char for char in {*text} - remaining if char.isalpha() and not char.isascii())


def has_unspaced_letters(text: str) -> bool:
    """Whether a text has letters of a script that is written without spaces."""
    return not text.isascii() and any(map(is_word_of_its_own, {*text}))
