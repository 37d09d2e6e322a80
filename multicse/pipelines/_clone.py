"""Imported by a script that is run as a file: its clone comes first, not an installed copy.

Python searches the folder of the script first, where ``multicse.py`` would hide the package and ``evaluate.py`` a library.
"""

import sys
from pathlib import Path

# Links are not followed: in the folder that a Ray job is sent, `pipelines` is a copy next to the package.
FOLDERS = Path(__file__).absolute().parents
sys.path[0] = next(str(folder) for folder in FOLDERS if (folder / "multicse" / "__init__.py").is_file())
