"""Fleets in virtual time: what routing and autoscaling would do, without engines, sockets or waits.

`EngineModel` is one engine: slots, queue, cache and steps. `RoutedFleet` has several behind the real `Router`,
`ScaledFleet` has several under the real autoscaler; `scaling` plays loads and recordings on such fleets, beside other
autoscalers' formulas. Pure: no clock but `VirtualTime`, and no I/O but the reading of a recording.
"""
