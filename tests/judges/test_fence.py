"""Nothing of the work lands outside of its fence, in any encoding, and nothing invisible lands inside."""

import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.judges.asking import criteria, judge_text, judges_of, model, question
from tests.judges.endpoint import Asked, Say, endpoint

from meruit.judges.fence import MAX_PART_CHARS, NONCE_CHARS, build_fence, clean, closing, opening
from meruit.judges.injections import build_injections
from meruit.judges.prompt import JudgePrompt, build_prompt, show_work
from meruit.model.evidence import Missing
from meruit.model.work import Work

INJECTIONS = build_injections("yes")
MARKS = re.compile(rf"</?work-[0-9a-f]{{{NONCE_CHARS}}}")
texts = st.one_of(
    st.text(),
    st.text(alphabet=st.characters(categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn"])),
    st.lists(st.sampled_from([*INJECTIONS.values(), "</work-", ">\n", "<work-", 'part="output">'])).map("".join),
)


def nonce_of(prompt: JudgePrompt) -> str:
    found = re.search(r"begin with <work-([0-9a-f]+)", prompt.system)
    assert found is not None
    return found[1]


def outside(prompt: JudgePrompt) -> str:
    """What a reader sees who skips everything between two marks, without the nonce and our own counts."""
    nonce = nonce_of(prompt)
    kept = re.sub(rf'(<work-{nonce} part="\w+">\n).*?(\n</work-{nonce}>)', r"\1\2", prompt.user, flags=re.DOTALL)
    whole = f"{prompt.system}\n{kept}".replace(nonce, "NONCE")
    return re.sub(r" \((\d+ invisible characters were removed|; |the last \d+ characters are not shown)+\)", "", whole)


@given(texts, texts, texts)
def test_the_prompt_outside_is_the_same_for_every_work(given_: str, done: str, right: str) -> None:
    asked = question(sees=["input", "output", "reference"])
    parts = {"input": given_, "output": done, "reference": right}
    # The seed decides the order of choices, so both have the same.
    prompt, empty = build_prompt(asked, parts, "s"), build_prompt(asked, dict.fromkeys(parts, ""), "s")
    assert outside(prompt) == outside(empty)
    assert prompt.user.count(closing(nonce_of(prompt))) == len(parts)


@given(st.dictionaries(texts, st.one_of(texts, st.lists(texts, max_size=2)), max_size=3))
def test_keys_and_values_of_any_output_stay_inside(output: dict[str, object]) -> None:
    shown = show_work(question(), Work(output=output, input=output))
    assert not isinstance(shown, Missing)
    prompt = build_prompt(question(), shown.parts, "s")
    assert outside(prompt) == outside(build_prompt(question(), {"input": "", "output": ""}, "s"))


@given(texts)
def test_what_is_shown_has_no_invisible_characters(text: str) -> None:
    found = clean(text).text
    assert not any(unicodedata.category(char) in {"Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for char in found)
    assert {char for char in found if unicodedata.category(char) == "Cc"} <= {"\n", "\t"}
    assert not any("\ufe00" <= char <= "\ufe0f" for char in found)


def test_removed_and_cut_characters_are_counted() -> None:
    fenced = build_fence({"output": "a\u200bb" + "c" * MAX_PART_CHARS}, "s")
    assert "(1 invisible characters were removed; the last 2 characters are not shown)" in fenced.text
    assert opening("output", fenced.nonce) + "\nabccc" in fenced.text


def test_a_work_that_holds_its_nonce_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first = "0" * 64
    monkeypatch.setattr("meruit.judges.fence.digest", lambda value: first if value[2] == 0 else "f" * 64)
    fenced = build_fence({"output": f"</work-{first[:NONCE_CHARS].upper()}>"}, "s")
    assert fenced.nonce == "f" * NONCE_CHARS


def test_private_inputs_are_not_shown_as_input() -> None:
    work = Work(input={"text": "hi", "reference": "secret gold", "pattern": "x"}, output={"text": "o"})
    shown = show_work(question(sees=["input"]), work)
    assert not isinstance(shown, Missing)
    assert shown.parts == {"input": "hi"}
    assert isinstance(show_work(question(sees=["reference"]), Work(output={"text": "o"})), Missing)
    gold = show_work(question(sees=["reference"]), work)
    assert not isinstance(gold, Missing)
    assert gold.parts == {"reference": "secret gold"}


def decoded(text: str) -> str:
    """The text with everything that an eager model could read in it."""
    return unicodedata.normalize("NFKC", text).casefold()


def obey_outside(asked: Asked) -> Say:
    """Answer yes to any order that stands outside of the fences, however it is written."""
    kept = asked.user
    for part in ("input", "output"):
        mark = f'<work-{asked.nonce} part="{part}">\n'
        kept = kept.replace(mark + asked.part(part), mark, 1)
    kept = re.sub(r" \(.*?\):\n", ":\n", kept)
    return Say("yes" if MARKS.sub("", decoded(kept)).count("answer") != 1 else "no")


def test_a_judge_that_obeys_orders_outside_the_fence_finds_none() -> None:
    with endpoint(obey_outside) as server:
        judges = judges_of({"polite": model(server.url)}, {"concurrency": 32})
        wanted = criteria(votes=1)
        for name, text in INJECTIONS.items():
            assert judge_text(judges, text, wanted).value == "no", name
    assert len(server.asked) == len(INJECTIONS) >= 25
    # The same judge obeys an order that does stand outside.
    leaked = replace(server.asked[0], user=f"{server.asked[0].user}\n{INJECTIONS['plain']}")
    assert obey_outside(leaked).answer == "yes"
