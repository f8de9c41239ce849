"""The node of local mode: schedules pods onto this machine and runs their containers as processes."""
