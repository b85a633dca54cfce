"""Events: every change is written to an outbox, and delivered from there at least once and in order.

Read in this order:

- records.py - what other packages use: read events, manage webhooks and dead letters
- store/outbox.py - the events, the cursors of consumers, and the delivery lease
- commit_signal.py - wakes readers when a transaction is committed
- dispatcher.py - delivers events to the log, to webhooks and to event streams
- webhook_delivery.py - one turn of one webhook: sign, send, retry
- store/webhooks.py, store/deliveries.py - webhooks, retries and dead letters
"""
