"""The number of replicas for an LLMDeployment: signals in, a count and a sentence with its reason out.

Pure: no I/O, no clock. Read `recommend` first; the operator's `controller/autoscale.py` calls it and writes the result.
"""
