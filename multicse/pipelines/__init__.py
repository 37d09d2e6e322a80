"""One file per paper, with its recipes: also the script that trains them. `parts` is what recipes share.

`run.py` starts all other commands, which are in `multicse.commands`: by its first word, or by the name of a link to it.
"""
