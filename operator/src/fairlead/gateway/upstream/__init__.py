"""Towards replicas: kept-alive connections, and the streams that come over them."""
