"""A criteria file as the verifier: the contract that an agent is paid by is the one that it is held to."""

import json

from pydantic import BaseModel

import meruit
from meruit.testing import ScriptedModel, submits

REFERENCE = "We are sorry that your order arrived broken. Your refund leaves us on 2026-11-17."


class Reply(BaseModel):
    """What the model proposes."""

    text: str
    verify = meruit.criteria("criteria.yaml", given={"reference": REFERENCE}, reveal="criteria")


model = ScriptedModel(
    [
        submits(text="A refund will follow soon."),
        submits(text="We are sorry that your order arrived broken. Your refund leaves us on 2026-11-18."),
    ]
)
agent = meruit.Agent("support", "Answer the complaint.", model, output_type=Reply)
result = agent.run_sync("My order arrived broken. Where is my money?")
print(model.asked[1][-1]["content"])
print("the model saw the reference:", REFERENCE in json.dumps(model.asked))
print("attempts used:", result.attempts_used)
