"""Prompts of papers, by which sounds are classified."""

# The 29 further audio prompts of Zhao et al. (Table 12), in its order. A blank at the end, which it prints as @, is part of
# the prompt.
CLAP_TEMPLATES = (
    *("A sound of {label}", "a sound of {label}."),
    *(f"{article} constant sound of {{label}}{end}" for end in ("", ".") for article in ("A", "a")),
    *("A big sound of {label}", "a big sound of {label}", "A big sound of {label}."),
    *("A small sound of {label}", "a small sound of {label}", "A small sound of {label}."),
    *("A {label} is making a sound.", "a {label} is making a sound"),
    *("An {label} is making a sound.", "an {label} is making a sound"),
    "A sound of {label} followed by a sound of {label}",
    "A sound of {label} followed by {label}",
    *("A {label} ", "A {label}", "An {label}", "an {label}", "{label} ", "{label}", "{label} and {label}"),
    *(f"A {{label}} is {verb}{end}" for verb in ("running", "happening") for end in (".", "")),
)
