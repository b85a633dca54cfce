"""HTTP routes, one file per resource. Requests and replies of the larger ones are in `api/wire/`."""
