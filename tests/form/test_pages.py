"""The pages are short, each folder has one, and the walks through the code name what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", sorted(ROOT.glob("*/README.md")), ids=lambda page: page.parent.name)
def test_the_page_of_a_folder_is_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_page_of_the_package_for_others_is_short():
    assert len((ROOT / "keras_impl" / "horovod_keras3" / "README.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_front_page_is_short_and_every_folder_has_a_page():
    text = (ROOT / "README.md").read_bytes()
    assert len(text.splitlines()) <= 150 and len(text) <= 12_000
    for folder in ("common", "torch_impl", "keras_impl", "launch", "analysis", "tests"):
        assert (ROOT / folder / "README.md").is_file(), folder


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
