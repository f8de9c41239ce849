"""The node of local mode: runs the containers of its pods as processes."""
