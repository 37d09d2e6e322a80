"""The numbers of NonLing-CSE's tables, by method and encoder. Averages are the paper's, and those of their rows."""

from __future__ import annotations

from multicse.reproduction.tables.table import Numbers

STS: dict[str, dict[str, Numbers]] = {  # Tables 1 and 2: STS12 to STS16, STS-B, SICK-R, their average
    "simcse": {
        "bert-base": (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23, 76.25),
        "roberta-base": (70.16, 81.77, 73.24, 81.36, 80.65, 80.22, 68.56, 76.57),
        "roberta-large": (72.86, 83.99, 75.62, 84.77, 81.80, 81.98, 71.26, 78.90),
    },
    "visualcse": {
        "bert-base": (71.16, 83.29, 75.13, 81.59, 80.05, 80.03, 71.23, 77.50),
        "roberta-base": (70.41, 83.51, 74.87, 82.79, 81.67, 81.89, 69.95, 77.87),
        "roberta-large": (73.09, 84.77, 77.09, 85.47, 82.06, 83.26, 72.23, 79.71),
    },
    "audiocse": {
        "bert-base": (71.65, 84.27, 76.69, 83.22, 78.69, 79.94, 70.49, 77.85),
        "roberta-base": (68.44, 83.96, 75.77, 82.38, 82.07, 81.63, 70.56, 77.83),
        "roberta-large": (72.10, 84.30, 76.74, 85.11, 82.51, 82.94, 72.45, 79.45),
    },
}
SUPERVISED: dict[str, Numbers] = {  # Table 6
    "simcse": (75.30, 84.67, 80.19, 85.40, 80.82, 84.25, 80.39, 81.57),
    "visualcse": (75.39, 84.69, 80.34, 85.76, 81.60, 84.85, 80.39, 81.86),
    "audiocse": (75.73, 84.92, 80.25, 85.90, 81.00, 84.36, 80.75, 81.84),
}
SIMCLR: dict[str, dict[str, Numbers]] = {  # Tables 4 and G.1
    "visualcse": {
        "bert-base": (71.81, 82.57, 75.40, 82.58, 79.34, 78.96, 70.83, 77.36),
        "roberta-base": (71.02, 83.19, 74.47, 82.59, 81.95, 81.94, 69.87, 77.86),
    },
    "audiocse": {
        "bert-base": (70.98, 83.03, 75.74, 83.03, 78.10, 78.33, 69.74, 77.00),
        "roberta-base": (68.88, 83.74, 74.69, 82.46, 82.02, 81.52, 70.65, 77.71),
    },
}
TRANSFERRED: dict[str, dict[str, Numbers]] = {  # Table E.1: MR, CR, SUBJ, MPQA, SST, TREC, MRPC, their average
    "bert-base": {
        "simcse": (81.18, 86.46, 94.43, 88.87, 85.50, 89.80, 74.49, 85.82),
        "visualcse": (82.29, 87.18, 94.85, 89.34, 86.55, 89.60, 74.32, 86.30),
        "audiocse": (81.10, 86.76, 94.65, 88.78, 86.00, 89.40, 74.43, 85.87),
    },
    "roberta-base": {
        "simcse": (81.04, 87.74, 93.28, 86.94, 86.60, 84.60, 73.68, 84.84),
        "visualcse": (81.84, 87.60, 92.76, 87.14, 86.77, 85.20, 74.43, 85.11),
        "audiocse": (80.76, 87.18, 93.39, 87.29, 87.64, 86.60, 75.07, 85.42),
    },
    "roberta-large": {
        "simcse": (82.74, 87.87, 93.66, 88.22, 88.58, 92.00, 69.68, 86.11),
        "visualcse": (83.44, 88.13, 93.96, 88.43, 88.63, 91.60, 73.86, 86.86),
        "audiocse": (83.49, 88.64, 93.86, 88.82, 88.63, 92.40, 69.97, 86.54),
    },
}
# Table 3: the averages of the seven sets over five seeds, of SimCSE and VisualCSE
REPEATED = {"bert-base": (75.74, 76.96), "roberta-base": (76.36, 77.74)}
LANGUAGES = {  # Table 5
    "german": {"simcse": 67.34, "visualcse": 69.87},
    "chinese": {"simcse": 67.98, "visualcse": 70.05},
    "french": {"simcse": 70.31, "visualcse": 72.52},
    "russian": {"simcse": 72.50, "visualcse": 77.48},
}
CIFAR = {"bert-base": 76.96, "roberta-base": 77.71}  # Table H.1
BATCHES: dict[str, Numbers] = {  # Table C.1: batch and rate of the text, of the images or sounds; rates in millionths
    "visualcse/bert-base": (64, 30, 48, 1),
    "audiocse/bert-base": (64, 30, 48, 0.2),
    "visualcse/roberta-base": (128, 20, 48, 0.5),
    "audiocse/roberta-base": (128, 20, 48, 0.2),
    "visualcse/roberta-large": (256, 10, 48, 0.5),
    "audiocse/roberta-large": (256, 10, 48, 5),
}
NEAREST = {  # Table D.1: query -> what the paper's SimCSE and VisualCSE find, an asterisk for what it leaves out
    "A double decker red bus moving along the street.": (
        (
            "A bus with people on it.",
            "A large orange bus is stopped*",
            "The blue bus passes pedestrians on a busy city street.",
        ),
        (
            "A yellow van driving down crowded city street.",
            "A red double-decker bus in Europe.",
            "A city street is shown with*people and double-decker buses.",
        ),
    ),
    "A couples posts for a picture in front of a bus.": (
        (
            "A couple are paying their fare at the front of a bus.",
            "Two women are walking in a crosswalk with a bus*",
            "A man and woman pose in front of some traffic.",
        ),
        (
            "A couple are paying their fare at the front of a bus.",
            "A young couple riding on a bus with the boy*",
            "A man and a woman sit on a bus*, but not together.",
        ),
    ),
    "A cat sits inside of a paper airplane toy.": (
        (
            "A cat is watching a girl construct a Lego airplane.",
            "A small child plays with her airplane as a cat looks on.",
            "A house cat is sitting on top of an old white car.",
        ),
        (
            "A cat is watching*a young girl playing with a toy airplane.",
            "A small child plays with her airplane as a cat looks on.",
            "A cat is watching a girl construct a Lego airplane.",
        ),
    ),
}
