"""Models as people have them: each gives a right verdict, or one line that says what to do."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from twins_cases import compared, written

from common.twins.verdict import judge

pytestmark = pytest.mark.ranks
MODELS = {one["name"]: one for one in tomllib.loads(Path(__file__).with_name("hostile.toml").read_text())["model"]}
QUICK = [name for name, one in MODELS.items() if "tier" not in one]
LINEAR = {
    "torch": "return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))",
    "keras": "return keras.Sequential([keras.Input(INPUT), L.Flatten(), L.Dense(3)])",
}
IMPORTS = {
    "torch": "import torch\nfrom torch import nn\n",
    "keras": "import keras\nfrom keras import layers as L\nfrom keras import ops\n",
}


def model_file(row):
    """Return the text of a model file."""
    if "file" in row:
        return row["file"]
    text = f"{row.get('before', '')}\nINPUT, OUTPUTS = {row.get('shape', '(2, 2, 3)')}, 3\n"
    for framework, linear in LINEAR.items():
        body = textwrap.indent(IMPORTS[framework] + row.get(framework, linear), "    ")
        text += f"\n\ndef {framework}_model():\n{body}\n"
    return text


def outcomes_of(names, folder):
    """Return name -> comparison or error."""
    texts = {name: model_file(MODELS[name]) for name in names}
    files = {name: written(folder / "files", f"m{number}", texts[name]) for number, name in enumerate(names)}
    return compared(files, folder)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return outcomes_of(QUICK, tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("name", QUICK)
def test_each_gives_a_verdict_or_one_line(outcomes, name):
    check(outcomes[name], MODELS[name])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=getattr(pytest.mark, MODELS[name]["tier"])) for name in MODELS if name not in QUICK],
)
def test_models_that_take_longer(name, tmp_path):
    check(outcomes_of([name], tmp_path)[name], MODELS[name])


def check(outcome, row):
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert re.fullmatch(row.get("line", "a verdict"), outcome), outcome
    else:
        assert judge(outcome).level == row.get("verdict", "an error"), outcome
