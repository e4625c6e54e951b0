"""The command `forebay`, also as `python -m forebay`."""

from __future__ import annotations

import signal
import sys

from forebay._forebay import _main


def main() -> int:
    """Run the command line with this process's arguments; returns its exit status."""
    # Python turns SIGINT into an exception that only Python code would notice: the
    # command is native, and Ctrl-C has to end it at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _main(["forebay", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
