"""HTTP/1.1 as every program here speaks it, over httptools: the server that gateway and engine have in common, and the
client of the gateway, the operator and the command line.

`limited` is a server's connection, and uvicorn's with the limits that it lacks; `server` the server. `client` sends
requests, `origin` opens connections for it, `client_connection` is one. The others are what they are made of. uvicorn
and httptools are dependencies of the programs, not of the protocol, which works without this package.
"""
