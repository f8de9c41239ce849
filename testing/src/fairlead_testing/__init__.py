"""Fakes: what tests need in order to do without engines, clusters or waiting. In no wheel or image of the product."""
