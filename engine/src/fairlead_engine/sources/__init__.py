"""The downloader: a model from a source into a folder below a *models folder*, whole or not at all.

`downloader.py` has the stages; a *remote* (`remote.py`) is the interface of a scheme. Nothing here imports torch,
unless files are to be converted.
"""
