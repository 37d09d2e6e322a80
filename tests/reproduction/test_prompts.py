"""The further prompts for sounds of Zhao et al. are those that the paper prints."""

from __future__ import annotations

from multicse.reproduction.tasks.prompts import CLAP_TEMPLATES


def test_the_29_prompts_of_zhao_et_al() -> None:
    """Table 12, line by line; @ is its sign for a blank at the end."""
    table = """
A sound of label
a sound of label.
A constant sound of label
a constant sound of label
A constant sound of label.
a constant sound of label.
A big sound of label
a big sound of label
A big sound of label.
A small sound of label
a small sound of label
A small sound of label.
A label is making a sound.
a label is making a sound
An label is making a sound.
an label is making a sound
A sound of label followed by a sound of label
A sound of label followed by label
A label@
A label
An label
an label
label@
label
label and label
A label is running.
A label is running
A label is happening.
A label is happening"""
    printed = [line.replace("label", "{label}").replace("@", " ") for line in table.splitlines()[1:]]
    assert len(printed) == 29 and list(CLAP_TEMPLATES) == printed
