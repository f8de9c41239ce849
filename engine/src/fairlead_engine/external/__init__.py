"""The front of a foreign server, in the server's pod: to gateways and operators an engine of ours."""
