"""The common ground of Fairlead's gateway and engine.

Both sides import this package and neither imports the other, and every prompt is rendered, tokenised and hashed by
the same code. No I/O beyond reading the folder of a model, no tensors; HTTP is in `http/` alone, the server of both
programs.
"""

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
"""Version of the model-server protocol; raised when an old peer could misread a message."""
