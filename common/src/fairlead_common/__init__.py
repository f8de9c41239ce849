"""What Fairlead's gateway and engine must agree on.

Both sides import this package and neither imports the other, so a prompt is rendered, tokenised and hashed by the very
same code wherever that happens. It does no I/O beyond reading a model's folder and knows no tensors; HTTP is in `http/`
alone, the server that both programs share.
"""

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
"""Version of the model-server protocol; raised when an old peer could misread a message."""
