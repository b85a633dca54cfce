"""A coding agent whose verifier runs the tests: the same summary passes once the file is right."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pydantic import BaseModel

from meruit import Agent, AgentContext, VerificationRejected
from meruit.testing import ScriptedModel, calls, says, submits

TESTS = """\
import unittest
from leap import is_leap


class Leap(unittest.TestCase):
    def test_fourth_years(self): self.assertTrue(is_leap(2024))
    def test_centuries(self): self.assertFalse(is_leap(1900))
    def test_fourth_centuries(self): self.assertTrue(is_leap(2000))
"""


class Verification(BaseModel):
    """How the tests went."""

    tests_run: int
    duration_ms: int


class FinalResult(BaseModel):
    """What the caller gets."""

    summary: str
    verification: Verification


class AgentOutput(BaseModel):
    """What the model proposes."""

    summary: str

    def verify(self, agent_ctx: AgentContext, attempt: int, max_attempts: int) -> FinalResult:
        """Run the tests in the folder that the run was given."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "-q"],
            cwd=agent_ctx.payload["folder"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        failed = [line.split()[1] for line in done.stderr.splitlines() if line.startswith(("FAIL:", "ERROR:"))]
        print(f"attempt {attempt} of {max_attempts}: {len(failed)} failed")
        tests = TESTS.count("def test")
        if done.returncode:
            summary = f"{len(failed)} of {tests} tests failed."
            raise VerificationRejected(summary, code="tests_failed", metadata={"failed_tests": failed[:10]})
        ran = Verification(tests_run=tests, duration_ms=int((time.monotonic() - began) * 1000))
        return FinalResult(summary=self.summary, verification=ran)


def write_file(path: str, content: str, agent_ctx: AgentContext) -> str:
    """Write a file of the project."""
    (Path(agent_ctx.payload["folder"]) / path).write_text(content)
    return "written"


def wrote(expression: str) -> str:
    """Stand in for code that a model wrote."""
    return f"def is_leap(year):\n    return {expression}\n"


handed_in = submits(summary="is_leap is done")
model = ScriptedModel(
    [
        says("", calls("write_file", path="leap.py", content=wrote("year % 4 == 0"))),
        handed_in,
        says(
            "Centuries!",
            calls(
                "write_file", path="leap.py", content=wrote("year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)")
            ),
        ),
        handed_in,
    ]
)
agent = Agent("coder", "Make the tests pass.", model, [write_file], AgentOutput, verify_max_attempts=3)
with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "test_leap.py").write_text(TESTS)
    result = agent.run_sync("Write leap.py.", payload={"folder": folder})
print(model.asked[2][-1]["content"])
print(result.output.summary, "-", result.output.verification.tests_run, "tests")
