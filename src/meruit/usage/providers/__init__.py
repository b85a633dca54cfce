"""Usage APIs of providers, one file each; registered with `usage_sources.add`.

Read one of them first:

- openrouter.py - by call
- openai.py, anthropic.py, anthropic_analytics.py - by the minute
- litellm.py - the logs of a proxy
- files.py, otel.py - from files
- support/ - what they share
"""
