"""Measure the governance rules on a simulated market whose honest and cheating agents are known.

The result holds for these kinds of agents. The market has no honest work whose long answer is fully determined by its
input, and no boilerplate that honest agents share; on such work, rules that compare texts do worse.

Read in this order:

- agents.py - the agents of the market, and an outcome with the truth about it
- honest.py - what honest agents do
- cheats.py - how an outcome is changed to cheat, one function per rule
- market.py - what the market remembers between outcomes
- trial.py - run the market, and count what the rules find
"""
