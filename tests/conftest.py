"""What holds for all tests."""

import signal

# A shell starts background jobs deaf to Ctrl-C, and what they start inherits it: the tests of interruption would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
