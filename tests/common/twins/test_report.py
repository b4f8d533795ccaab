"""Causes, verdicts and the report, from comparisons that are made here."""

from dataclasses import replace

import pytest
from browser import started_browser

from common.twins.causes import causes_of
from common.twins.comparison import Comparison, Parting, Row, Step, Whole, read_comparison
from common.twins.contract import PairSource
from common.twins.page import write_page
from common.twins.report import MOST_LINES, report_lines
from common.twins.trace import Dropout
from common.twins.training import dropout_differences
from common.twins.verdict import judge

BOTH = {"torch": 1, "keras": 1}


def step(name, place="layer", **numbers):
    return Step(name=name, place=place, numbers=numbers)


def parting(torch, keras, *, where="inside", difference=0.1, **more):
    return Parting(where=where, mode="inference", torch=torch, keras=keras, difference=difference, **more)


def between(torch_steps, keras_steps, **more):
    """Return a parting before a layer."""
    return parting(
        step("linear"), step("Dense"), where="before", torch_steps=torch_steps, keras_steps=keras_steps, **more
    )


def comparison(*partings, rows=(), training=(), **more):
    plain = Comparison(
        rows=list(rows),
        partings=list(partings),
        arrays=BOTH,
        matched=BOTH,
        parameters=BOTH,
        only_torch={},
        only_keras={},
        unsupported={},
        guessed=[],
        tied=[],
        training=list(training),
        stopped_after="",
        tried=0,
        whole=Whole(differences={"outputs in inference": (1e-15, "")}, updates=10),
        multiply_adds=BOTH,
        seconds={"torch": 1.0, "keras": 2.0},
        memory_bytes={"torch": 10**9, "keras": 2 * 10**9},
    )
    return replace(plain, **more)


CONVOLUTION = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
CAUSES = [
    (
        parting(step("layer_norm", eps=1e-5), step("LayerNormalization", epsilon=1e-3)),
        "epsilon",
        "Keras: LayerNormalization(epsilon=1e-05)",
    ),
    (
        parting(step("conv2d", **CONVOLUTION | {"stride": [2, 2]}), step("Conv2D", strides=(1, 1), padding="same")),
        "strides",
        "Keras: Conv2D(strides=2)",
    ),
    (
        parting(step("conv2d", **CONVOLUTION | {"stride": [2, 2]}), step("Conv2D", strides=(2, 2), padding="same")),
        "padding",
        "Keras: ZeroPadding2D(1) before it, and Conv2D(padding='valid')",
    ),
    (
        parting(
            step("conv2d", **CONVOLUTION),
            step("Conv2D", strides=(1, 1), padding="valid"),
            facts={"pads": [[0, 2], [0, 2]]},
        ),
        "padding",
        "Keras: ZeroPadding2D(1)",
    ),
    (
        parting(step("conv2d", **CONVOLUTION | {"dilation": [2, 2]}), step("Conv2D", strides=(1, 1), padding="same")),
        "dilation",
        "Keras: Conv2D(dilation_rate=2)",
    ),
    (
        parting(step("group_norm", num_groups=4, eps=1e-5), step("GroupNormalization", groups=2, epsilon=1e-5)),
        "groups",
        "Keras: GroupNormalization(groups=4)",
    ),
    (parting(step("linear"), step("Dense"), facts={"lone": "PyTorch"}), "bias", "Keras: Dense(use_bias=True)"),
    (parting(step("linear"), step("Dense")), "unknown", ""),
    (between([step("relu6")], [step("ReLU")]), "activation", "Keras: keras.layers.ReLU(max_value=6.0)"),
    (
        between([step("max_pool2d", kernel_size=3, stride=2, padding=1)], [step("MaxPooling2D", pool_size=(2, 2))]),
        "pooling",
        "Keras: keras.layers.ZeroPadding2D(1), then keras.layers.MaxPooling2D(3, strides=2)",
    ),
    (between([], [step("Rescaling", scale=0.1)]), "scale", "Keras: leave out Rescaling"),
    (
        between([step("add")], [step("Relu")], torch_later=[step("relu")], keras_later=[step("Add"), step("Relu")]),
        "activation",
        "Keras: leave out Relu",
    ),
    (between([], [], torch_source="a", keras_source="b"), "wiring", ""),
    (between([], [step("Permute")], reordered=True), "order", "Keras: keras.layers.Permute before it"),
    (
        between(
            [step("scaled_dot_product_attention", heads=2, masked=True)], [step("attention", heads=2, masked=False)]
        ),
        "mask",
        "Keras: use_causal_mask=True",
    ),
    (
        between(
            [step("scaled_dot_product_attention", heads=2, masked=True)], [step("attention", heads=4, masked=True)]
        ),
        "heads",
        "Keras: num_heads=2",
    ),
]


@pytest.mark.parametrize(("found", "kind", "remedy"), CAUSES)
def test_the_cause_is_named_with_the_line_that_makes_both_equal(found, kind, remedy):
    assert [(one.kind, one.remedy) for one in causes_of(found)] == [(kind, remedy)]


EPSILON = CAUSES[0][0]
LEVELS = [
    (comparison(), "equal", 0),
    (comparison(parting(step("linear"), step("Dense"), difference=2e-8)), "equal", 0),  # a constant in float32
    (comparison(replace(EPSILON, difference=5e-9)), "numbers", 1),  # small, but of a number that differs
    (comparison(training=[("momentum", "text", "")]), "training", 1),
    (comparison(replace(EPSILON, mode="training")), "training", 1),
    (comparison(whole=Whole(differences={"gradients": (0.5, "a")})), "training", 1),
    (comparison(whole=Whole(differences={"outputs in inference": (0.5, "")})), "numbers", 1),
    (comparison(EPSILON), "numbers", 1),
    (comparison(only_keras={"a/bias": [3]}), "work", 1),
    (comparison(multiply_adds={"torch": 1, "keras": 2}), "work", 1),
    (comparison(CAUSES[1][0]), "work", 1),
    (comparison(EPSILON, unsupported={"lstm": "a recurrent layer"}), "undecided", 2),
]


@pytest.mark.parametrize(("found", "level", "code"), LEVELS)
def test_the_verdict_says_what_may_be_compared(found, level, code):
    verdict = judge(found)
    assert (verdict.level, verdict.exit_code) == (level, code)
    assert report_lines(found, verdict, page="")[0] == verdict.headline


def test_the_report_has_at_most_40_lines_however_much_differs(tmp_path):
    many = [replace(found, torch=step("linear", f"t{n}")) for n, (found, _, _) in enumerate(CAUSES * 9)]
    training = [("dropout", f"text {n}", "remedy") for n in range(20)]
    arrays = {f"array{n}": [1] for n in range(99)}
    found = comparison(*many, training=training, only_torch=arrays, only_keras=arrays, tied=list(arrays), tried=7)
    lines = report_lines(found, judge(found), page="page.html")
    assert len(lines) <= MOST_LINES
    assert lines[0].startswith("DIFFERENT WORK")


def test_a_cause_at_several_places_is_said_once():
    same = [replace(EPSILON, torch=step("layer_norm", f"norm{n}", eps=1e-5)) for n in range(5)]
    text = "\n".join(report_lines(comparison(*same), judge(comparison(*same)), page=""))
    assert "inside norm0 / layer: epsilon, 1.0e-01 apart, and 4 more like it" in text
    assert text.count("epsilon 1e-05 in PyTorch") == 1


def test_what_is_written_is_what_is_read(tmp_path):
    rows = [
        Row(torch=step("linear"), keras=None),
        Row(torch=step("linear"), keras=step("Dense"), before=0.0, inside=None),
    ]
    found = comparison(*(one for one, _, _ in CAUSES), rows=rows, training=[["a", "b", "c"]])
    found.write(tmp_path / "first.json")
    read = read_comparison(tmp_path / "first.json")
    read.write(tmp_path / "second.json")
    assert read_comparison(tmp_path / "second.json") == read
    assert [one.cause.text for one in judge(read).found] == [one.cause.text for one in judge(found).found]


def test_the_page_has_all_layers_and_shows_markup_as_text(tmp_path):
    rows = [Row(torch=step("linear", "<b>"), keras=step("Dense", "dense"), before=0.1, inside=1e-15)]
    found = comparison(between([step("relu")], []), rows=rows)
    write_page(tmp_path / "page.html", PairSource(file="<script>.py"), found, judge(found))
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page and "<script>" not in page
    assert page.count("<details open>") == 1


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_is_whole_by_itself_and_no_wider_than_the_screen(tmp_path, width):
    places = [f"features.{n}.block.{n}.a_long_name_of_a_layer" for n in range(30)]
    rows = [Row(torch=step("conv2d", one), keras=step("Conv2D", one), before=0.1, inside=None) for one in places]
    found = comparison(*(one for one, _, _ in CAUSES), rows=rows, only_keras={one: [1] for one in places})
    write_page(tmp_path / "page.html", PairSource(file="file.py"), found, judge(found))
    address = (tmp_path / "page.html").as_uri()
    with started_browser(tmp_path) as browser:
        browser.open(address, width=width)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.errors == [] and browser.requests == [address]
        assert browser.value("document.querySelectorAll('details[open]').length") == 1


def dropout(layer, rate, number=1.0, **more):
    return Dropout(layer=layer, rate=rate, input=[4.0, number, 5.0, 6.0, 2.0, -1.0], **more)


def test_dropout_is_compared_by_place_not_by_name_or_order():
    torch = [dropout("a", 0.1, 1.0), dropout("b", 0.5, 2.0)]
    assert dropout_differences(torch, [dropout("x", 0.5, 2.0), dropout("y", 0.1, 1.0)]) == []
    swapped = dropout_differences(torch, [dropout("x", 0.1, 2.0), dropout("y", 0.5, 1.0)])
    assert [text for _, text, _ in swapped] == [
        "dropout: 0.1 in PyTorch, 0.5 in Keras, at a",
        "dropout: 0.5 in PyTorch, 0.1 in Keras, at b",
    ]


def test_dropout_in_inference_is_named():
    found = dropout_differences([dropout("a", 0.1, always=True)], [dropout("x", 0.1)])
    assert [text for _, text, _ in found] == ["dropout: PyTorch drops in inference, too, at a"]
