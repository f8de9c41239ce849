"""An hour of everything at once on a local fleet of tiny caches, and the books afterwards: `make soak`."""
