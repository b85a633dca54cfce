"""The console: what the service knows, as pages for a browser.

Read in this order:

- page.py - `page` and `action`, which make a route of a function; PageRequest, which shows a template
- session.py - sign in with a key, sessions, tokens against forged posts
- app.py - gathers the pages of pages/ and adds them to the service
- query.py, table.py - filters and columns in the URL; live.py - pages that follow events
- static_files.py, problems.py, shape.py - files with a digest in their name, error pages, words for values

To add a page, write one file in pages/ and one template in templates/; no list names them:

    @page("/things", nav=NavEntry("Quality", "Things", keys="t", order=40))
    async def list_things(request: PageRequest) -> Response[bytes]:
        found = await request.service.read(lambda connection: things.page(connection, request.caller.scope))
        return request.show("things.html", things=found)

The template extends layout.html and fills the blocks `title`, `head` (crumbs, h1, answer) and `main`; macros are in
pages/components.html (marks, rates, empty states), ui.html (times, ids, money, JSON, differences) and lists.html
(filters, tables, pager). A page asks the capability with the caller's scope and never writes SQL. `roles=` says who
may see it, with READERS as the default; what the API shows an agent's key may be shown to it, and nothing else.
A parameter of the path is annotated `FromPath[str]`.
An act is a post: `@action("/things/{thing_id:str}/close")`, whose form must hold `{{ ui.csrf(request) }}`. Its dialog
is a page whose template extends dialog.html, linked with `data-dialog`.
A list reads its filters with `Query.of(request)` and its columns with `Table.of(...)`; a page whose
`table.file` is not None replies with `stream_table` and `table.read_all`, the whole list as CSV or XLSX.
A page that changes by itself passes `live=Live(types=..., subject=...)` to `show`.

tests/console walks every page that is linked from another, in both themes, on a phone, and as every role.
"""
