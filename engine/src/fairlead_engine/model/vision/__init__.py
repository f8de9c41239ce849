"""The tower that makes vectors of images, in the shape of the hidden states that tokens have."""
