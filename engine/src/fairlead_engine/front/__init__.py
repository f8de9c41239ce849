"""What stands in front of a server that is not ours, in its pod: to gateways and operators it is an engine of ours."""
