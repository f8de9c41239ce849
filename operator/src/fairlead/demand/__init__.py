"""What clients ask of one model, as the gateways tell it: the input of `fairlead.autoscaler`.

Pure: no I/O, no clock. `readings` makes the Demand of the gateways' lines, and `record` what is remembered of it.
"""
