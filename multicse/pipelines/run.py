"""Start any command: ``python pipelines/run.py COMMAND``, or the command that a link to this file is named after."""

from __future__ import annotations

import sys

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
