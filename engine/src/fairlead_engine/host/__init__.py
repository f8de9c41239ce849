"""The HTTP process around the endpoints: limits, lifecycle, metrics, streams to gateways, links to its peers."""
