"""`python -m analysis ring`: the sums are right, the passes are those of the document, and what is sent is counted."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.__main__ import main
from analysis.questions.ring.command import example_vectors
from analysis.questions.ring.passes import ring_all_reduce
from analysis.questions.ring.plot import plot_ring


@given(st.integers(1, 16), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_every_rank_ends_with_the_sum_of_all(ranks, more, seed):
    """The first passes add, the next replace: with each of these a rank has one more chunk complete."""
    vectors = np.random.default_rng(seed).integers(-1000, 1000, size=(ranks, ranks + more))
    before = vectors.copy()
    passes = list(ring_all_reduce(vectors))
    assert (passes[-1].vectors == vectors.sum(axis=0)).all() and passes[-1].contributors.all()
    assert (vectors == before).all() and (passes[0].vectors == before).all()
    assert [one.kind for one in passes] == ["start"] + ["add"] * (ranks - 1) + ["replace"] * (ranks - 1)
    assert [one.number for one in passes] == list(range(2 * ranks - 1))
    for one in passes[1:]:
        assert [(send.rank, send.to) for send in one.sends] == [(rank, (rank + 1) % ranks) for rank in range(ranks)]
        assert sorted(send.chunk for send in one.sends) == list(range(ranks))
        complete = one.contributors.all(axis=2).sum(axis=1)
        assert set(complete.tolist()) == {max(0, one.number - ranks + 2)}


def test_three_ranks_by_hand():
    """Rank 0 has 1 2 3, rank 1 has 10 20 30, rank 2 has 100 200 300."""
    passes = list(ring_all_reduce(np.array([[1, 2, 3], [10, 20, 30], [100, 200, 300]])))
    assert [[(send.rank, send.chunk) for send in one.sends] for one in passes] == [
        [], [(0, 0), (1, 1), (2, 2)], [(0, 2), (1, 0), (2, 1)], [(0, 1), (1, 2), (2, 0)], [(0, 0), (1, 1), (2, 2)],
    ]  # fmt: skip
    assert [one.vectors.tolist() for one in passes] == [
        [[1, 2, 3], [10, 20, 30], [100, 200, 300]],
        [[1, 2, 303], [11, 20, 30], [100, 220, 300]],
        [[1, 222, 303], [11, 20, 333], [111, 220, 300]],
        [[111, 222, 303], [11, 222, 333], [111, 220, 333]],
        [[111, 222, 333], [111, 222, 333], [111, 222, 333]],
    ]


@pytest.mark.parametrize(
    ("ranks", "elements", "lengths", "sent", "sums"),
    [
        (4, 400, "100", 2 * 3 * 100 * 4, None),
        # Each rank leaves out one chunk of each half: 10 - 2 - 2, 10 - 1 - 2 or 10 - 2 - 1 numbers.
        (3, 5, "1 or 2", 7 * 4, [18, 42, 30]),  # (1 + 2 + 3) x (1 + 2), ...
        (4, 11, "2 or 3", 17 * 4, [60, 150, 240, 210]),
    ],
)
def test_chunks_and_bytes_by_hand(ranks, elements, lengths, sent, sums, capsys):
    assert main(["ring", "--np", str(ranks), "--elements", str(elements), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (table,) = shown["tables"]
    assert f"{ranks} ranks, {elements} numbers each, in chunks of {lengths}; " in table["title"]
    assert shown["answer"].startswith(f"Each rank sends {sent:,} bytes at most")
    last = [[row[f"chunk {number}"] for number in range(ranks)] for row in table["rows"][-ranks:]]
    assert sums is None or last == [sums] * ranks


def test_the_table_of_a_terminal_has_the_first_and_last_passes(capsys):
    assert main(["ring", "--np", "3"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ +1 +add +0 +chunk 0 to rank 1 +0 +1 +2 +12$", shown, re.M)
    assert "Each rank sends 16 bytes at most, 1.333 times its vector, in 4 passes. If all" in shown
    assert "it would send 24 bytes and receive as many: 1.5 times" in shown
    assert main(["ring", "--np", "9"]) == 0
    shown = capsys.readouterr().out
    assert "Passes 0, 1, 4, 8, 9, 16 of 0 to 16: --format csv has all" in shown
    assert len(re.findall(r"^ +\d+ +(?:start|add|replace) ", shown, re.M)) == 6 * 9


def picture_of(ranks, elements):
    """Return the title of the picture and the texts of its panels."""
    figure = plot_ring(list(ring_all_reduce(example_vectors(ranks, elements))))
    panels = [[text.get_text() for text in ax.texts if text.get_text()] for ax in figure.axes if ax.images]
    return figure.get_suptitle(), panels


def test_the_picture_shows_every_number_or_of_many_ranks_some_passes():
    _, panels = picture_of(3, 3)
    assert panels[0] == ["1", "2", "3", "2", "4", "6", "3", "6", "9"]
    assert len(panels) == 5 and panels[-1] == ["6", "12", "18"] * 3
    title, panels = picture_of(8, 16)
    assert len(panels) == 6 and "the start and 5 of 14 passes are shown" in title and "sum of a chunk" in title
    assert "numbers are left out above 16 ranks" in picture_of(17, 17)[0]


def test_one_rank_has_nothing_to_send(tmp_path, capsys):
    assert main(["ring", "--np", "1", "--plots", str(tmp_path)]) == 0
    assert "One rank has nothing to send" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
