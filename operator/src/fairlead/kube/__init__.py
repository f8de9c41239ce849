"""The Kubernetes API: requests, list-watch, server-side apply, Lease. Thin on purpose: raw objects (dicts) in and out.

Used by the operator and the gateway, which are long-lived asyncio processes with a handful of resources each.
"""
