"""The protocol between engines, gateways and the operator: messages, block hashes, profiles, downloads."""
