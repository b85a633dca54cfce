"""Runs metric code that users write, isolated from the host, in three tiers: `expr`, `python` and `python-full`.

Read in this order:
    contract.py     what each tier takes and returns, and the names of the failures
    sandbox.py      `Sandbox`, the class that callers use
    pool.py         warm workers, shared by all sandboxes of one kind
    expression.py   tier `expr`: CEL
    interpreter.py  tier `python`: pydantic-monty, started by launch.py; wire.py carries its calls
    jail.py         tier `python-full` on the host's side; zygote.py runs inside
    confine.py      the kernel's limits: system calls, files, memory, user
    determinism.py  fixed clock and fixed seeds inside the jail
    selftest.py     runs hostile code to prove that the limits hold on this machine
"""
