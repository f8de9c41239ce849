"""How many replicas an LLMDeployment should have: signals in, a count and the sentence that explains it out.

Pure: no I/O, no clock of its own. `recommend` is the file to read first; the operator's `controller/autoscale.py` feeds
it and writes what it says.
"""
