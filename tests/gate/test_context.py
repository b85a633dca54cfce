"""What a run carries with it can be written down and taken up by another worker."""

from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.state import PriorRejection, VerificationEnding, VerificationState


class Coding(AgentContext):
    """An agent's own context."""

    branch: str = "main"


def test_a_context_survives_being_written_down() -> None:
    verification = VerificationState(
        attempts_used=2, rejected={"a": PriorRejection(1, "s1")}, ended=VerificationEnding.TURNS
    )
    context = Coding(run_id="r1", query="fix it", branch="fix", verification=verification)
    assert Coding.model_validate_json(context.model_dump_json()) == context


def test_progress_may_be_ignored() -> None:
    ExecutionContext().progress("half done")
