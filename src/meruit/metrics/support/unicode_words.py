"""Words of any script, as the Unicode standard bounds them by default (UAX #29).

Letters with their accents, and digits, make a word. Scripts that are written without spaces (Chinese, Japanese,
Thai, Lao, Khmer, Burmese) have no such bounds: each of their letters is a word, and so is a run of Katakana.
"""

import re
import unicodedata

from meruit.model.text import normalize_unicode

MAX_KNOWN_CHARS = 65_536
"""How many characters are remembered with their class."""

_ALONE = (
    *("CJK UNIFIED ", "CJK COMPATIBILITY ", "HIRAGANA ", "HENTAIGANA ", "TANGUT ", "NUSHU ", "KHITAN ", "HANGZHOU "),
    *("IDEOGRAPHIC CLOSING ", "IDEOGRAPHIC NUMBER "),
    *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TAI LE ", "NEW TAI LUE ", "TAI THAM ", "TAI VIET ", "AHOM "),
)
"""How the names of letters begin that are words of their own: ideographs, and scripts that need a dictionary."""
_KATAKANA = ("KATAKANA", "HALFWIDTH KATAKANA", "VERTICAL KANA ")
_BETWEEN_BOTH = frozenset("'.‘’․﹒＇．")
_BETWEEN_LETTERS = frozenset(":··՟״‧︓﹕：")
_BETWEEN_DIGITS = frozenset(",;\u037e։،؍٬߸⁄︐︔﹐﹔，；")
_ZERO_WIDTH_SPACE = "\u200b"

# A text is cut by its classes: one letter for each character of it.
#   L letter, D digit, K Katakana, W a word of its own, J joins what is beside it (_), X extends what it follows (an
#   accent, an invisible mark), b joins two letters or two digits (can't, 3.14), l two letters, d two digits,
#   a space for what separates.
_RUN = r"(?:(?:LX*+(?:[bl]X*+(?=L))?+|DX*+(?:[bd]X*+(?=D))?+)++|(?:KX*+)++)"
_JOINERS = r"(?:JX*+)"
# The last branch passes over joiners that join nothing at once; from each of them the search would begin again.
_WORD = re.compile(rf"({_JOINERS}*+{_RUN}(?:{_JOINERS}++{_RUN})*+{_JOINERS}*+|WX*+)|{_JOINERS}++")


class _Classes(dict[int, str]):
    """The class of each character, found when first met."""

    def __missing__(self, code: int) -> str:
        if len(self) >= MAX_KNOWN_CHARS:
            self.clear()
        found = self[code] = _class_of(chr(code))
        return found


_CLASSES = _Classes()


def words_unicode(text: str) -> list[str]:
    """The words of a text in any script, in canonical form (NFC); what has no letter or digit only separates them."""
    text = normalize_unicode("NFC", text)
    found = _WORD.finditer(text.translate(_CLASSES))
    return [text[word.start() : word.end()] for word in found if word.lastindex]


def is_word_of_its_own(char: str) -> bool:
    """Whether a letter is of a script that is written without spaces."""
    return char.isalpha() and _CLASSES[ord(char)] in "KW"


def _class_of(char: str) -> str:  # noqa: PLR0911 - one a class
    if char in _BETWEEN_BOTH:
        return "b"
    if char in _BETWEEN_LETTERS:
        return "l"
    if char in _BETWEEN_DIGITS:
        return "d"
    name = unicodedata.name(char, "")
    match unicodedata.category(char):
        case "Nd":
            return "D"
        case "No":
            return "W"
        case "Nl" | "Lu" | "Ll" | "Lt" | "Lm" | "Lo":
            return "W" if name.startswith(_ALONE) else "K" if name.startswith(_KATAKANA) else "L"
        case "Pc":
            return "J"
        case "Mn" | "Mc" | "Me":
            return "X"
        case "Cf" if char != _ZERO_WIDTH_SPACE:
            return "X"
        case _:
            return " "
