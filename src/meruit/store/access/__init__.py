"""Who may call: API keys, browser sessions, and what each key has sent.

Read in this order:
    keys.py      API keys, kept as hashes
    sessions.py  sessions of browsers that signed in with a key
    key_use.py   requests and bytes of each key, for quotas
"""
