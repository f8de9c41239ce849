"""`fairlead-engine characterise`: a model's performance on this machine, measured and written down.

`measuring.py` runs requests of growing shapes through an engine in this process, `command.py` makes a profile,
`picture.py` draws it. Nothing here is imported by the server.
"""
