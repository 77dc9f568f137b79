"""`python -m deploy.demo`: see run.py."""

import signal
import sys

if __name__ == "__main__":
    # While modules are loaded there is nothing to clean up: Ctrl-C may end us without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deploy.demo.run import main

    sys.exit(main())
