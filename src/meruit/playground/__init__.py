"""Systems that an agent can act on: a record of patients, a portal, a clearinghouse, a drop for files, a telephone."""
