"""HTTP routes, one file per resource. A `*_wire.py` file holds the requests and replies of its resource."""
