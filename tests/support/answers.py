"""How much an answer may hold: few figures in a sentence, few words in a line; the rest is in the tables."""

import re

MOST_FIGURES = 3  # of a sentence
MOST_WORDS = 60  # of a line, of which a reader takes in about 50 in ten seconds
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
# A number that stands alone, and not in a name such as resnet34, 28x28, E5-2620 or --nodes=2.
_INTERVAL = re.compile(r"95 % interval [-+\d.]+ to [-+\d.]+")
_FIGURE = re.compile(r"(?<![\w.:/=-])[-+]?\d[\d,]*(?:\.\d+)?(?![\w:/-]|\.\d)")


def figures_of(sentence):
    """Return the numbers of a sentence; an interval is one."""
    return _FIGURE.findall(_INTERVAL.sub("1", sentence))


def check_answer(answer):
    """Check that each sentence names few figures, and that each line, the answer to one question, is short."""
    for sentence in _SENTENCES.split(answer):
        assert len(figures_of(sentence)) <= MOST_FIGURES, f"more than {MOST_FIGURES} figures: {sentence}"
    for line in answer.splitlines():
        words = len(line.split())
        assert words <= MOST_WORDS, f"{words} words, more than can be taken in at once: {line}"
