"""`fairlead-engine characterise`: what a model does on this machine, measured and written down.

`measuring.py` plays requests of growing shapes through an engine in this process, `command.py` makes a profile of what
it saw, `picture.py` draws it. Nothing here is imported by the server.
"""
