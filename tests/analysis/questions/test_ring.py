"""`python -m analysis ring`: the sums are right, the passes are those of the document, and what is sent is counted."""

import csv
import io
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from analysis.__main__ import main
from analysis.questions.ring.command import bytes_sent, example_vectors, ring_table
from analysis.questions.ring.passes import chunk_slices, ring_all_reduce, selected_passes, sums_of_chunks
from analysis.questions.ring.plot import plot_ring


def ring_of(ranks, elements):
    return list(ring_all_reduce(example_vectors(ranks, elements)))


@given(st.integers(1, 12), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_every_rank_ends_with_the_sum_of_all(ranks, more, seed):
    vectors = np.random.default_rng(seed).integers(-1000, 1000, size=(ranks, ranks + more))
    before = vectors.copy()
    passes = list(ring_all_reduce(vectors))
    assert (passes[-1].vectors == vectors.sum(axis=0)).all()
    assert passes[-1].contributors.all()
    assert (vectors == before).all() and (passes[0].vectors == before).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
def test_the_first_passes_add_and_the_next_replace(ranks):
    passes = ring_of(ranks, ranks)
    assert [one.kind for one in passes] == ["start"] + ["add"] * (ranks - 1) + ["replace"] * (ranks - 1)
    assert [one.number for one in passes] == list(range(2 * ranks - 1))
    for one in passes[1:]:
        assert [(send.rank, send.to) for send in one.sends] == [(rank, (rank + 1) % ranks) for rank in range(ranks)]
        assert sorted(send.chunk for send in one.sends) == list(range(ranks))
    complete = [one.contributors.all(axis=2).sum(axis=1).tolist() for one in passes]
    assert complete[ranks - 2] == [0] * ranks
    for number, counts in enumerate(complete[ranks - 1 :], start=1):
        assert counts == [number] * ranks  # one more with each pass that replaces


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
    who = [
        [["".join(str(rank) for rank in np.flatnonzero(chunk)) for chunk in row] for row in one.contributors]
        for one in passes
    ]
    assert who == [
        [["0", "0", "0"], ["1", "1", "1"], ["2", "2", "2"]],
        [["0", "0", "02"], ["01", "1", "1"], ["2", "12", "2"]],
        [["0", "012", "02"], ["01", "1", "012"], ["012", "12", "2"]],
        [["012", "012", "02"], ["01", "012", "012"], ["012", "12", "012"]],
        [["012", "012", "012"], ["012", "012", "012"], ["012", "012", "012"]],
    ]


def test_chunks_of_a_vector_that_does_not_divide():
    assert [(part.start, part.stop) for part in chunk_slices(11, 4)] == [(0, 3), (3, 6), (6, 9), (9, 11)]
    one = ring_of(4, 11)[-1]
    assert sums_of_chunks(one).tolist() == [[60, 150, 240, 210]] * 4  # (1 + 2 + 3) x (1 + 2 + 3 + 4), ...


def test_bytes_by_hand():
    assert bytes_sent(ring_of(4, 400)) == [2 * 3 * 100 * 4] * 4
    # Chunks of 2, 2 and 1 numbers: each rank leaves out one chunk of each half, 10 - 2 - 2, 10 - 1 - 2 or 10 - 2 - 1.
    assert sorted(bytes_sent(ring_of(3, 5))) == [6 * 4, 7 * 4, 7 * 4]


def test_the_table_in_every_form(tmp_path, capsys):
    assert main(["ring", "--np", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Ring all-reduce: 3 ranks, 3 numbers each, in chunks of 1; ")
    assert re.search(r"^ +1 +add +0 +chunk 0 to rank 1 +0 +1 +2 +12$", shown, re.M)
    assert "Each rank sends 16 bytes at most, 1.333 times its vector, in 4 passes. If all" in shown
    assert "it would send 24 bytes and receive as many: 1.5 times" in shown
    assert main(["ring", "--np", "3", "--format", "csv", "--folder", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    rows = list(csv.reader(io.StringIO(file.read_text())))
    output = capsys.readouterr()
    assert output.out == "" and f"table: {file}" in output.err
    assert rows[0] == ["pass", "receivers", "rank", "sent", "complete", "chunk 0", "chunk 1", "chunk 2"]
    assert rows[1] == ["0", "start", "0", "", "0", "1", "2", "3"]
    assert rows[-1] == ["4", "replace", "2", "chunk 2 to rank 0", "3", "6", "12", "18"]
    assert len(rows) == 1 + 5 * 3 and "Each rank sends" in output.err
    assert main(["ring", "--np", "9", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tables"][0]["rows"]) == 17 * 9


def test_of_many_ranks_text_shows_some_passes_and_reports_it(capsys):
    assert selected_passes(9) == [0, 1, 4, 8, 9, 16]
    assert main(["ring", "--np", "9", "--format", "text"]) == 0
    shown = capsys.readouterr().out
    assert "Passes 0, 1, 4, 8, 9, 16 of 0 to 16: --format csv has all" in shown
    assert len(ring_table(ring_of(9, 9), chosen=selected_passes(9)).rows) == 6 * 9


def texts_of(figure):
    return [[text.get_text() for text in ax.texts if text.get_text()] for ax in figure.axes if ax.images]


@pytest.mark.usefixtures("drawn")
def test_the_picture_shows_every_number(tmp_path, capsys):
    panels = texts_of(plot_ring(ring_of(3, 3)))
    assert panels[0] == ["1", "2", "3", "2", "4", "6", "3", "6", "9"]
    assert panels[1] == ["1", "2", "12", "3", "4", "6", "3", "10", "9"]
    assert len(panels) == 5 and panels[-1] == ["6", "12", "18"] * 3
    assert main(["ring", "--np", "3", "--plots", str(tmp_path / "made")]) == 0
    assert f"plot: {tmp_path / 'made' / 'ring.svg'}" in capsys.readouterr().out
    assert Image.open(tmp_path / "made" / "ring.png").size[0] > 600


def test_the_picture_of_many_ranks_shows_some_passes():
    figure = plot_ring(ring_of(8, 16))
    assert len(texts_of(figure)) == 6 and "the start and 5 of 14 passes are shown" in figure.get_suptitle()
    assert "sum of a chunk" in figure.get_suptitle()
    assert "numbers are left out above 16 ranks" in plot_ring(ring_of(17, 17)).get_suptitle()
    assert len(texts_of(plot_ring(ring_of(6, 6)))) == 11


def test_one_rank_has_nothing_to_send(tmp_path, capsys):
    assert main(["ring", "--np", "1", "--plots", str(tmp_path)]) == 0
    assert "One rank has nothing to send" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main(["ring", "--np", "1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"].startswith("One rank has nothing to send")
