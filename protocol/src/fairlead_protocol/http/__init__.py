"""The HTTP server that gateway and engine have in common: uvicorn's, with the limits that it lacks.

`limited` is a connection, `server` the server; the others are what they are made of. uvicorn and httptools are
dependencies of both programs, not of the protocol, which works without this package.
"""
