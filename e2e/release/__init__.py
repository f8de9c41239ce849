"""A release: images and chart in a registry, each with where it comes from, and images with what is in them.

`python -m release` is the command line. Nothing here needs a container engine: images are docker-archives, as
`images.build` writes them.
"""
