"""The pages are short, each folder has one, and the walks through the code name what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


FOLDERS = ("common", "torch_impl", "keras_impl", "launch", "analysis", "tests")
MOST_LINES = {"README.md": 150, "keras_impl/horovod_keras3/README.md": 60}
MOST_LINES |= {f"{folder}/README.md": 200 for folder in FOLDERS}


@pytest.mark.parametrize("page", MOST_LINES)
def test_a_page_is_there_and_short(page):
    text = (ROOT / page).read_bytes()
    assert len(text.splitlines()) <= MOST_LINES[page] and (page != "README.md" or len(text) <= 12_000)


def test_the_two_walks_are_at_most_eight_files_each_and_name_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Follow one batch and one number")[1].split("\n## ")[0]
    walks = [
        re.findall(r"^\d+\. `([^`]+)`(?:: `([^`]+)`)?", walk, flags=re.MULTILINE)
        for walk in section.split("\nOne ")[1:]
    ]
    assert len(walks) == 2
    for walk in walks:
        assert 3 <= len(walk) <= 8
        for file, name in walk:
            source = (ROOT / file).read_text(encoding="utf-8")
            for part in name.split("."):
                assert re.search(rf"^ *(def|class) {part}\b", source, flags=re.MULTILINE) or not part, (file, part)
