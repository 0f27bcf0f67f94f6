"""Made-up sentences of five words: one of six in each place. Four pairs of the training text are to be dropped."""

import itertools
from pathlib import Path

WORDS = [
    "the das, this dieses, every jedes, no kein, my mein, her ihr",
    "big große, small kleine, green grüne, quick schnelle, old alte, new neue",
    "child Kind, girl Mädchen, horse Pferd, sheep Schaf, calf Kalb, hen Huhn",
    "sees sieht, hears hört, likes mag, wants will, finds findet, needs braucht",
    "water Wasser, bread Brot, light Licht, books Bücher, houses Häuser, music Musik",
]
places = [[pair.split() for pair in words.split(", ")] for words in WORDS]
every = ["\t".join(map(" ".join, zip(*words, strict=True))) + "\n" for words in itertools.product(*places)]
valid, test = every[5::617], every[11::617]
train = [pair for pair in every[::19] if pair not in valid + test]
train += [train[0], "the big child\t\n", "music\tmusic\n", "books\tBücher" + " und Bücher" * 9 + "\n"]
for name, pairs in {"train": train, "valid": valid, "test": test}.items():
    Path(f"{name}.tsv").write_text("".join(pairs), encoding="utf-8")
