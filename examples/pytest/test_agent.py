"""Tests of an agent: one by hand, and one for each case of a file."""

import pytest
from agent import answer

from meruit.evaluations import Case
from meruit.testing import MeruitFixture


def test_it_answers_in_one_sentence(meruit: MeruitFixture) -> None:
    reply = answer("What is the capital of France?")
    meruit.verify("criteria.yaml", output=reply, input={"reference": "Paris"})


@pytest.mark.meruit_dataset("cases.jsonl")
def test_it_knows_capitals(case: Case, meruit: MeruitFixture) -> None:
    meruit.verify("criteria.yaml", output=answer(meruit.given["prompt"]))
