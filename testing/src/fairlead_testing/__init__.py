"""Fakes that ship: what tests of ours and of others need in order to do without engines, clusters or waiting."""
