"""Pure routing: who has room, who is picked, who waits. No I/O; `now` (seconds, any monotonic clock) is an argument.

The gateway drives these classes with the loop's clock; a simulator can drive the very same ones in virtual time.
Nothing here parses Kubernetes objects or HTTP.
"""
