"""The agent that is tested: it knows some capitals."""

CAPITALS = {"France": "Paris", "Norway": "Oslo", "Peru": "Lima", "Kenya": "Mombasa"}


def answer(question: str) -> str:
    """Answer in one sentence."""
    country = question.rstrip("?").rpartition(" ")[2]
    return f"The capital of {country} is {CAPITALS[country]}."
