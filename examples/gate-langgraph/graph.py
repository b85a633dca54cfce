"""LangGraph: a node that sends the graph back to the model until its output is verified."""

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from meruit import VerificationRejected
from meruit.bridges.langgraph import GateState, gate_node


class AgentOutput(BaseModel):
    """What the model proposes."""

    city: str

    def verify(self, attempt: int) -> str:
        """Look the city up."""
        print(f"attempt {attempt}: {self.city}")
        if self.city != "Canberra":
            raise VerificationRejected(f"{self.city} is not the capital of Australia", code="wrong_city")
        return f"{self.city}, as the atlas says"


CITIES = ["Sydney", "Melbourne", "Canberra"]


def model(state: GateState) -> GateState:
    """Stand in for a model with the tool `agent_output`."""
    turn = sum(isinstance(one, AIMessage) for one in state["messages"])
    call = {"name": "agent_output", "args": {"city": CITIES[turn]}, "id": f"call_{turn}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


saver, thread = InMemorySaver(), {"configurable": {"thread_id": "1"}}


def built():
    """As another process would build it again."""
    graph = StateGraph(GateState)
    graph.add_node("model", model)
    graph.add_node("gate", gate_node(AgentOutput, back="model", max_attempts=3), destinations=("model", END))
    graph.add_edge(START, "model")
    graph.add_edge("model", "gate")
    return graph.compile(checkpointer=saver)


question = {"messages": [("user", "What is the capital of Australia?")]}
built().invoke(question, thread, interrupt_after=["gate"])
print("stopped; the checkpoint has the count")
ended = built().invoke(None, thread)
print(ended["result"])
print("rejected:", ended["verification"]["state"]["attempts_used"])
