"""What all tests rely on: Ctrl-C works, also for the processes they start."""

import signal

# A shell without job control starts its background jobs with SIGINT ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
