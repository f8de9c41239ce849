"""`ImageSettings`, for `server/image_loader.py`."""

from fairlead_protocol.models.image_settings import ImageSettings as ImageSettings
