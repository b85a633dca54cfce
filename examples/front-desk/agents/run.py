"""Acts as one of the agents at the task that `meruit benchmark run` gives: `python agents/run.py gold`."""

import os
import sys

from front_desk import agents
from front_desk.desk import Desk


def main() -> None:
    """Do the task as the agent of that name does it."""
    name, task = sys.argv[1], os.environ["MERUIT_TASK_ID"]
    agent = agents(task).get(name)
    if agent is None:
        sys.exit(f"{task} has no agent {name!r}; it has {', '.join(agents(task))}")
    with Desk(os.environ) as desk:
        agent(desk)


if __name__ == "__main__":
    main()
