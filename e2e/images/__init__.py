"""Fairlead's container images for tests, built with buildah: without a Docker engine and, if need be, a registry.

`python -m images` is the command line, `images.build.build` the same for Python. Nothing here knows where they run.
"""
