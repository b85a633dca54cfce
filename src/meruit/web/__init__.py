"""The layer between Starlette and our routes: handlers with typed arguments, guards, errors and OpenAPI.

Starlette reads requests; what it leaves open is here. Each handler is compiled once, when an application is built.

- routing.py - `get`, `post` and so on make a route of a function; the table that finds the route of a path
- parameters.py - where an argument comes from, its constraints, and what is wrong with a value
- requests.py, responses.py - what handlers take and return
- app.py - the application: groups of routes, guards, exception handlers, lifespan
- openapi.py - the OpenAPI document of routes, from the signatures of their handlers
- fair_threads.py, loop_turns.py - callers take turns: of threads, and of the event loop
- validation.py - messages of msgspec, without the values that they quote
"""
