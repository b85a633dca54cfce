"""A bridge whose framework is not installed says what to install."""

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("bridge", "needs", "install"),
    [
        ("pydantic_ai", "pydantic_ai", "pip install pydantic-ai-slim"),
        ("openai_agents", "agents", "pip install openai-agents"),
        ("langgraph", "langgraph.graph", "pip install langgraph"),
        ("langgraph", "langchain_core.messages", "pip install langgraph"),
    ],
)
def test_what_is_missing_is_named(bridge: str, needs: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in (f"meruit.bridges.{bridge}", "meruit.bridges.langchain_messages"):
        monkeypatch.delitem(sys.modules, known, raising=False)
    monkeypatch.setitem(sys.modules, needs, None)
    with pytest.raises(ModuleNotFoundError, match=install):
        import_module(f"meruit.bridges.{bridge}")


def test_the_bridges_bring_no_framework_along() -> None:
    names = "{'agents', 'langgraph', 'pydantic_ai'}"
    code = f"import sys, meruit.bridges as b; b.gate, b.criteria; print({names} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"
