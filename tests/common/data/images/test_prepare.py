"""Prepared images: rows, values and bytes of the file, errors in folders and files, training."""

import itertools
import json
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from builders import make_config, make_task
from given.common import broken as break_files
from given.common import pets
from jobs import Job, do_job, start_of
from made_images import write_image
from PIL import Image
from processes import ROOT, environment
from safetensors.numpy import load_file

from common.__main__ import main
from common.data.batches import normalize
from common.data.images import folder as images
from common.data.images import prepared_file
from common.data.images.prepare import Settings, prepare
from common.data.images.prepared_file import load_prepared, read_description
from common.data.images.reading import read_image
from common.data.images.rows import parse_shares
from common.data.loading import load_dataset
from common.errors import UserError
from common.utils import workers
from common.utils.workers import in_order

CLASSES = ("cat", "dog")


@pytest.fixture
def folder(tmp_path):
    """40 cats, of the values 0 to 39, and 40 dogs, of 100 to 139."""
    pets(tmp_path)
    return tmp_path / "pets"


def make(folder, name="made", **changes):
    """Prepare a folder and return the file."""
    settings = {"image_shape": (4, 6, 1), "pixels": "uint8", "shares": parse_shares("85/2/13"), "seed": 1}
    prepare(folder, folder.parent / name, Settings(**{**settings, "skip_broken": False, **changes}))
    return folder.parent / name


@pytest.mark.parametrize(
    ("split", "count", "expected"),
    [
        ("85/2/13", 1000, (850, 20, 130)),
        ("85/2/13", 40, (34, 1, 5)),
        ("85/2/13", 27, (22, 1, 4)),
        ("70/0/30", 10, (7, 0, 3)),
        ("62.5/12.5/25", 8, (5, 1, 2)),
        ("62.5/12.5/25", 20, (12, 3, 5)),  # 2.5 is rounded up
        ("85/2.5/12.5", 20, (16, 1, 3)),  # 85/2/13 leaves none for validation
    ],
)
def test_each_part_gets_its_rounded_share_of_a_class(split, count, expected):
    assert parse_shares(split).of_class("cat", count) == expected


@pytest.mark.parametrize("pixels", ["uint8", "float16"])
def test_images_labels_and_statistics_also_as_safetensors_reads_them(folder, pixels):
    file = make(folder, pixels=pixels)
    dataset = load_dataset(f"prepared:{file}")
    assert dataset.class_names == CLASSES and dataset.image_shape == (4, 6, 1)
    assert (len(dataset.train), dataset.validation_samples, len(dataset.test)) == (68 + 2, 2, 10)
    assert np.bincount(dataset.train.labels[:-2]).tolist() == [34, 34]
    assert np.bincount(dataset.train.labels[-2:]).tolist() == [1, 1]
    assert np.bincount(dataset.test.labels).tolist() == [5, 5]
    assert (np.diff(dataset.train.labels) != 0).mean() > 0.3, "classes are mixed"
    arrays, seen = load_file(file), []
    assert arrays.keys() == {"train_images", "train_labels", "test_images", "test_labels"}
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        np.testing.assert_array_equal(arrays[f"{name}_images"], split.images)
        np.testing.assert_array_equal(arrays[f"{name}_labels"], split.labels)
        assert split.images.dtype == pixels and split.labels.dtype == np.int64
        assert isinstance(split.images, np.memmap) and not split.images.flags.writeable
        first = np.asarray(split.images[:, 0, 0, 0])
        whole = first if pixels == "uint8" else np.rint(first.astype(np.float64) * 255)
        if pixels == "float16":
            np.testing.assert_array_equal(first, (whole / 255).astype(np.float16))
        assert (split.images == first[:, None, None, None]).all()
        np.testing.assert_array_equal(split.labels, whole >= 100)
        seen.append(whole.astype(int))
    assert sorted(np.concatenate(seen).tolist()) == [*range(40), *range(100, 140)]
    training = seen[0][:-2] / 255
    assert dataset.mean == pytest.approx([training.mean()])
    assert dataset.standard_deviation == pytest.approx([training.std()])
    description, start = read_description(file)
    assert (description.split, description.seed, description.source) == ("85/2/13", 1, "pets")
    assert start % 4096 == 0


def test_images_are_resized_and_made_gray_as_a_folder_is_read(tmp_path):
    random = np.random.default_rng(0)
    for name, number in itertools.product(CLASSES, range(3)):
        path = tmp_path / f"pets/{name}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20 + number, 31, 3), dtype=np.uint8)).save(path)
    for channels in (1, 3):
        file = make(tmp_path / "pets", f"made{channels}", image_shape=(7, 9, channels), shares=parse_shares("67/0/33"))
        dataset = load_dataset(f"prepared:{file}")
        assert dataset.image_shape == (7, 9, channels) and dataset.validation_samples == 0
        images = {image.tobytes() for split in (dataset.train, dataset.test) for image in split.images}
        expected = [read_image(path, shape=(7, 9, channels)).pixels for path in (tmp_path / "pets").rglob("*.jpg")]
        assert images == {np.asarray(image).tobytes() for image in expected} and len(images) == 6


def test_the_file_depends_on_folder_and_seed_only(folder, monkeypatch):
    same = [make(folder, "first").read_bytes(), make(folder, "second").read_bytes()]
    with monkeypatch.context() as patch:
        patch.setattr(workers, "usable_cores", lambda: 1)
        same.append(make(folder, "one-worker").read_bytes())
    monkeypatch.setattr(images, "CHUNK_IMAGES", 7)
    same.append(make(folder, "chunks").read_bytes())
    assert len(set(same)) == 1
    first, other = (load_prepared(make(folder, f"seed{seed}", seed=seed), name="made") for seed in (1, 2))
    assert not np.array_equal(first.train.images, other.train.images)
    assert set(first.test.images[:, 0, 0, 0].tolist()) != set(other.test.images[:, 0, 0, 0].tolist())


def test_only_a_few_items_are_in_progress_at_once():
    """Memory therefore does not grow with the number of images."""
    taken = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    results = in_order(lambda number: number * number, items(), workers=2)
    assert [next(results) for _ in range(10)] == [number * number for number in range(10)]
    assert len(taken) <= 10 + 2 * 2 + 1
    assert list(results) == [number * number for number in range(10, 100)]


def test_a_file_that_breaks_between_the_passes_is_an_error(folder, monkeypatch):
    (folder / "cat/empty.png").touch()
    read, calls = images.read_image, itertools.count()

    def reading(path, **options):
        return "gone" if next(calls) == 100 else read(path, **options)

    monkeypatch.setattr(images, "read_image", reading)
    with pytest.raises(UserError, match=r"1 of 81 image files are broken.*gone"):
        make(folder, skip_broken=True)
    assert list(folder.parent.iterdir()) == [folder]


def test_large_files_are_checked_by_their_length_and_labels_only(folder, monkeypatch):
    """Damaged files and those of another version: `refusals/common.toml`."""
    file = make(folder)
    file.write_bytes(file.read_bytes()[:-1] + b"0")
    with pytest.raises(UserError, match="the images have another checksum"):
        load_prepared(file, name="made")
    monkeypatch.setattr(prepared_file, "FULL_CHECK_BYTES", 100)
    load_prepared(file, name="made")


def test_a_header_of_an_earlier_version_is_read(folder):
    """It had spaces between its parts."""
    file = make(folder)
    content, expected = file.read_bytes(), load_prepared(file, name="made")
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start])).encode().ljust(start - 8)
    assert len(header) == start - 8 and header != content[8:start]
    file.write_bytes(content[:8] + header + content[start:])
    np.testing.assert_array_equal(load_prepared(file, name="made").train.images, expected.train.images)


def test_the_data_set_has_its_validation_rows_or_a_share_is_cut(folder, tmp_path):
    def setup_of(file, stop=None, **data):
        training = {"batch_size": 30} | (stop or {})
        return make_task(make_config(tmp_path, data={"dataset": f"prepared:{file}", **data}, training=training))

    setup = setup_of(make(folder, pixels="float16"))
    np.testing.assert_array_equal(setup.training_indices, np.arange(68))
    np.testing.assert_array_equal(setup.validation_indices, [68, 69])
    assert setup.validates_after(1)
    pixels = normalize(setup.dataset.train.images[:68], setup.table)
    assert pixels.mean() == pytest.approx(0, abs=1e-3) and pixels.std() == pytest.approx(1, abs=1e-3)
    with pytest.raises(UserError, match=r"its own validation split \(2 samples\). Received: --validation-share 0.1"):
        setup_of(make(folder, "again"), validation_share=0.1)
    without = make(folder, "without", shares=parse_shares("87/0/13"))
    for flag, stop in {"--early-stop 2": {"early_stop": 2}, "--target-accuracy 0.9": {"target_accuracy": 0.9}}.items():
        with pytest.raises(UserError, match=f"needs validation samples. Received: {flag} --validation-share 0.0. Give"):
            setup_of(without, stop)
        assert len(setup_of(without, stop, validation_share=0.25).validation_indices) == 18  # a quarter of 70


def test_a_folder_that_is_split_keeps_its_parts(tmp_path):
    for part, count in (("train", 3), ("valid", 2), ("test", 1)):
        for (label, name), number in itertools.product(enumerate(CLASSES), range(count)):
            write_image(tmp_path / f"pets/{part}/{name}/{number}.png", 100 * label + 10 * count + number)
    (tmp_path / "pets/train/cat/broken.png").touch()
    file = make(tmp_path / "pets", shares=None, skip_broken=True)
    dataset = load_dataset(f"prepared:{file}")
    values = [split.images[:, 0, 0, 0] for split in (dataset.train, dataset.test)]
    assert dataset.validation_samples == 4 and sorted(values[0][-4:].tolist()) == [20, 21, 120, 121]
    assert sorted(values[0][:-4].tolist()) == [30, 31, 32, 130, 131, 132] and sorted(values[1].tolist()) == [10, 110]
    np.testing.assert_array_equal(dataset.train.labels, values[0] >= 100)
    assert dataset.mean == pytest.approx([values[0][:-4].mean() / 255])
    assert read_description(file)[0].split == "folders"
    (tmp_path / "pets/test/dog/0.png").write_text("no image")
    with pytest.raises(UserError, match=r"no readable image for test\. Received: class dog with 1 broken"):
        make(tmp_path / "pets", "again", shares=None, skip_broken=True)


def command(folder, *arguments):
    return [*f"images prepare {folder} --image-size 4x6 --output {folder.parent}/made".split(), *arguments]


def test_the_command(folder, capsys):
    (folder / "cat/.hidden.png").touch()
    Image.new("RGBA", (6, 4), (0, 0, 0, 0)).save(folder / "dog/00.png")
    clean = load_prepared(make(folder, "clean", pixels="float16"), name="clean")
    broken = break_files(folder.parent)
    assert main(command(folder)) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert "4 of 84 image files are broken. Received: cat/deep.png (16 bits per channel, not 8)" in shown
    assert "cat/empty.png (empty file)" in shown and "and 1 more" in shown and "--skip-broken" in shown
    assert {path.name for path in folder.parent.iterdir()} == {"pets", "clean"}

    assert main(command(folder, "--gray", "--dtype", "float16", "--skip-broken")) == 0
    shown = capsys.readouterr().out
    counts = "68 training, 2 validation and 10 test images of 2 classes"
    assert f"{counts}, 4x6 pixels (height x width), 1 channel, float16" in shown
    assert "note: left out of the folder of images, hidden: 1, such as cat/.hidden.png" in shown
    assert "note: images with transparent pixels, placed on white: 1 of 80, such as dog/00.png" in shown
    assert "left out 4 broken files" in shown and "cat/empty.png: empty file" in shown
    assert shown.splitlines()[-1].startswith("prepared 80 images in ")
    made = {path.name for path in folder.parent.iterdir()}
    assert made == {"pets", "clean", "made", "made-before.png", "made-after.png", "made-skipped.txt"}
    listed = (folder.parent / "made-skipped.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in listed] == broken
    before, after = (Image.open(folder.parent / f"made-{name}.png") for name in ("before", "after"))
    # These images need no resizing, so below the titles both sheets show the same.
    before_pixels, after_pixels = (np.asarray(sheet)[40:] for sheet in (before, after))
    np.testing.assert_array_equal(before_pixels, after_pixels)
    shown_values = {*before_pixels[30, 100::134, 0].tolist(), *before_pixels[120, 100::134, 0].tolist()}
    assert len([value for value in shown_values if 100 <= value < 140]) >= 6  # dogs
    assert len([value for value in shown_values if value < 40]) >= 6  # cats
    dataset = load_dataset(f"prepared:{folder.parent / 'made'}")
    np.testing.assert_array_equal(dataset.train.images, clean.train.images)
    np.testing.assert_array_equal(dataset.test.labels, clean.test.labels)
    assert read_description(folder.parent / "made")[0].skipped_files == 4


def test_a_full_disk_is_one_line_and_leaves_no_files(folder, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        code = main(command(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and f"File too large. Received: {folder.parent / 'made'}" in capsys.readouterr().err
    assert list(folder.parent.iterdir()) == [folder]


def test_an_interruption_leaves_no_files(folder):
    large = folder / "cat/large.png"
    write_image(large, 1, size=(3000, 3000))
    for copy in range(300):  # takes some seconds
        (folder / f"cat/copy{copy}.png").hardlink_to(large)
    program = [sys.executable, "-m", "common", *command(folder)]
    process = subprocess.Popen(program, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        while not any(path.stat().st_size for path in folder.parent.glob(".made.partial-*")):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.ranks
@pytest.mark.ci
def test_both_trainers_train_on_it(framework, folder):
    make(folder, pixels="float16")
    run = ["--dataset", "prepared:made", "--model", "mlp", "--batch-size", "8", "--learning-rate", "0.1"]
    stop = ["--epochs", "9", "--target-accuracy", "1", "--name", framework]
    jobs = [
        Job("train", (*run, *stop)),
        Job("evaluate", (f"runs/{framework}",), program="predict"),
        Job("classify", (f"runs/{framework}", str(folder / "dog/00.png")), program="predict"),
    ]
    start = start_of(framework, launcher="none", arguments=())
    printed = {job.name: do_job(job, start=start, folder=folder.parent)[0].stdout for job in jobs}
    assert "68 training, 2 validation, 10 test images" in printed["train"]
    assert "test: loss" in printed["train"]
    assert "accuracy 100.00 % (10/10)" in printed["evaluate"]
    assert printed["classify"].split()[1] == "dog"
