"""The downloader: a model from its source into a folder below a *models folder*, whole or not at all.

`downloader.py` tells the way; a *remote* (`remote.py`) is what a scheme has to offer.
Nothing here imports torch, unless files are to be converted.
"""
