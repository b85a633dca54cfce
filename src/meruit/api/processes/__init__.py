"""Several processes that serve one address: `meruit serve --workers N`.

Read in this order:
- supervisor.py - the parent, which starts the workers, replaces one that dies, and stops them
- inheritance.py - what a worker inherits from the parent
- limits.py - what the workers count together: rates, open streams, idempotency keys in use
- siblings.py - the messages between workers
- exposition.py - the metrics of all workers as one text
"""
