"""Drawn shapes: determined by the seed; all classes; nothing overwritten, nothing unfinished."""

import numpy as np
import pytest
from PIL import Image

from common.__main__ import main
from common.data.images import shapes
from common.data.images.shapes import CLASS_NAMES, SHAPES, class_of, draw_folder, draw_shape
from common.utils import workers

SIZE = (18, 24)  # height, width


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def pixels(index, *, seed=1):
    return np.asarray(draw_shape(index, seed=seed, image_size=SIZE))


def test_files_depend_on_the_seed_and_not_on_the_number_of_workers(tmp_path, monkeypatch, capsys):
    for name, seed, cores in (("one", 1, 1), ("two", 1, 2), ("other", 2, 1)):
        monkeypatch.setattr(workers, "usable_cores", lambda cores=cores: cores)
        size = "x".join(map(str, SIZE))
        arguments = ["--images", "11", "--image-size", size, "--seed", str(seed)]
        assert main(["images", "draw", str(tmp_path / name), *arguments]) == 0
        assert "drew 11 images in" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "other"}
    first, second, other = (contents(tmp_path / name) for name in ("one", "two", "other"))
    assert first == second
    assert first.keys() == other.keys() and not set(first.values()) & set(other.values())
    for path in (tmp_path / "one").rglob("*.png"):
        index = int(path.stem)
        assert path.parent.name == class_of(index)
        with Image.open(path) as picture:
            assert picture.mode == "L" and picture.size == SIZE[::-1]
            np.testing.assert_array_equal(np.asarray(picture), pixels(index))
    counts = {folder.name: len(list(folder.iterdir())) for folder in (tmp_path / "one").iterdir()}
    assert set(counts) == set(CLASS_NAMES) and sorted(counts.values()) == [1] * 7 + [2] * 2


def test_images_differ_in_more_than_their_shapes():
    made = [pixels(index) for index in range(0, 90, 9)] + [pixels(0, seed=2)]
    assert len({image.tobytes() for image in made}) == len(made)
    assert all(image.std() > 5 for image in made)
    circle, hexagon = (pixels(CLASS_NAMES.index(name)) for name in ("circle", "hexagon"))
    assert (circle == hexagon).mean() < 0.2  # consecutive images have different backgrounds


def test_each_shape_is_in_its_image_with_an_area_of_its_own(monkeypatch):
    """Without disturbances, what is darker than the rest has the area of the outline."""
    for name in ("LINES", "BLOTS", "UNEVENNESS"):
        monkeypatch.setattr(shapes, name, 0)
    for name, values in {"NOISE": (0, 0), "RADIUS": (0.3, 0.3), "STRETCH": (1, 1), "CONTRAST": (60, 60)}.items():
        monkeypatch.setattr(shapes, name, values)
    areas = []
    for index, outline in enumerate(SHAPES.values()):
        x, y = outline.T
        areas.append(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)  # the shoelace formula
        picture = np.asarray(draw_shape(index, seed=1, image_size=(500, 600))).astype(int)
        assert (picture < picture.max() - 30).sum() == pytest.approx(areas[-1] * 150**2, rel=0.04)
    assert len({round(area, 4) for area in areas}) == 9 and areas[CLASS_NAMES.index("square")] == pytest.approx(2)


def test_an_interruption_leaves_no_files(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, "in_order", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_folder(tmp_path / "made", images=18, image_size=SIZE, seed=1)
    assert list(tmp_path.iterdir()) == []
