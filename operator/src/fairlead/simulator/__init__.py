"""Fleets in virtual time: what routing and autoscaling would do, without engines, sockets or waits.

`EngineModel` is one engine: slots, queue, cache and steps. `RoutedFleet` has several behind the real `Router`,
`ScaledFleet` has several under the real autoscaler. Pure: no I/O and no clock but `VirtualTime`.
"""
