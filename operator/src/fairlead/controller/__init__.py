"""The operator: event → observe → desired → plan → apply → status. `reconcile` is the file to read first, then
`autoscale`, the autoscaler's loop.

Level-triggered: what an event says is never used, only that something happened. Only `applier`, `scaling` and `events`
write to the cluster, and only `applier` talks to engines; `desired`, `plan`, `pod_diagnosis` and `status` are pure.
"""
