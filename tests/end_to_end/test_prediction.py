"""Prediction against numbers by hand, with a fake classifier in the place of a framework's."""

import numpy as np
import pytest
from builders import DATASET, make_config, make_record, make_task, random_weights, write_trained_run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from common.config import config_from_dict
from common.data.loading import load_dataset
from common.errors import UserError
from common.run_folder.checkpoints import Checkpoint, save_checkpoint
from common.run_folder.records import NotRecorded
from common.run_folder.run_writer import RunWriter
from common.trained.prediction import confusion_table, losses, read_image, run_prediction, scores
from common.trained.trained_model import read_trained_model

PROGRAM = "torch_impl/predict.py"
CLASSES = ["cat", "dog", "owl"]


def settings(loss="cross_entropy", activation="linear"):
    return config_from_dict({"optimizer": {"loss": loss}, "model": {"output_activation": activation}})


SIGMOID, SHARE = 1 / (1 + np.exp(-2.0)), np.exp(2.0) / (1 + np.exp(2.0))


@pytest.mark.parametrize(
    ("loss", "activation", "outputs", "expected_scores", "expected_loss"),
    [
        ("cross_entropy", "linear", np.log([6.0, 3.0, 1.0]), [0.6, 0.3, 0.1], -np.log(0.3)),
        ("mse", "linear", [0.0, 2.0], [0.0, 2.0], (0 + 1) / 2),
        ("mse", "sigmoid", [0.0, 2.0], [0.5, SIGMOID], (0.25 + (SIGMOID - 1) ** 2) / 2),
        ("mse", "softmax", [0.0, 2.0], [1 - SHARE, SHARE], (1 - SHARE) ** 2),
    ],
    ids=["cross_entropy", "mse", "mse-sigmoid", "mse-softmax"],
)
def test_scores_and_losses_by_hand(loss, activation, outputs, expected_scores, expected_loss):
    config, outputs = settings(loss, activation), np.array([outputs])
    np.testing.assert_allclose(scores(outputs, config=config), [expected_scores])
    np.testing.assert_allclose(losses(outputs, np.array([1]), config=config), [expected_loss])


@pytest.mark.filterwarnings("error")
@given(outputs=arrays.arrays(np.float64, (3, 4), elements=st.floats(-1e4, 1e4)))
def test_large_outputs_do_not_overflow(outputs):
    labels = np.array([0, 3, 1])
    probabilities = scores(outputs, config=settings())
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (losses(outputs, labels, config=settings()) >= -1e-9).all()
    sigmoids = scores(outputs, config=settings("mse", "sigmoid"))
    assert ((sigmoids >= 0) & (sigmoids <= 1)).all()


def test_confusion_table_by_hand():
    table = confusion_table(np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 0, 3]), names=CLASSES)
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["true", "\\", "predicted", "cat", "dog", "owl", "output", "3"]
    assert rows[1:] == [["cat", "1", "1", "0", "0"], ["dog", "0", "1", "0", "0"], ["owl", "1", "0", "0", "1"]]
    assert len({len(line) for line in table.splitlines()}) == 1


def save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def test_an_image_is_taken_as_it_is_or_converted_and_resized(tmp_path):
    gray = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
    file = save_image(tmp_path / "gray.png", gray)
    np.testing.assert_array_equal(read_image(file, shape=(5, 7, 1))[..., 0], gray)
    np.testing.assert_array_equal(read_image(file, shape=(5, 7, 1), invert=True)[..., 0], 255 - gray)
    np.testing.assert_array_equal(read_image(file, shape=(5, 7, 3)), np.repeat(gray[..., None], 3, axis=2))
    color = np.stack([gray, gray[::-1], 255 - gray], axis=2)
    np.testing.assert_array_equal(read_image(save_image(tmp_path / "c.png", color), shape=(5, 7, 3)), color)


def test_an_image_is_read_as_the_training_images_were(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for name in ("train/a/0", "train/b/0", "test/a/0", "test/b/0"):
        save_image(tmp_path / "images" / f"{name}.png", random.integers(0, 256, (9, 11, 3), dtype=np.uint8))
    dataset = load_dataset(f"images:{tmp_path}/images", image_size=(6, 5), gray=True)
    pixels = read_image(tmp_path / "images" / "train" / "b" / "0.png", shape=dataset.image_shape)
    np.testing.assert_array_equal(pixels, dataset.train.images[1])


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n broken", None, "cut", "16 bit", "bomb"])
def test_a_bad_image_is_one_line(content, tmp_path, monkeypatch):
    file = tmp_path / "a.png"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        noise = np.random.default_rng(0).integers(0, 256, (50, 50), dtype=np.uint8)
        save_image(file, noise.astype(np.uint16) * 257 if content == "16 bit" else noise)
        if content == "cut":
            file.write_bytes(file.read_bytes()[:1000])
        elif content == "bomb":
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(UserError, match=rf"cannot read the image. Received: {file} \(.+\)") as error:
        read_image(file, shape=(5, 5, 1))
    assert "\n" not in str(error.value)


def test_a_run_of_images_that_no_file_holds_is_refused(tmp_path):
    with pytest.raises(UserError, match="2 channels"):
        read_image(save_image(tmp_path / "a.png", np.zeros((5, 5), np.uint8)), shape=(5, 5, 2))


@pytest.fixture
def run(tmp_path):
    task = make_task(make_config(tmp_path))
    folder = write_trained_run(tmp_path / "run", task, random_weights(task, seed=2))
    save_checkpoint(folder, Checkpoint(1, 4, random_weights(task, seed=1), {}))
    return folder


def test_final_weights_are_used_and_without_them_the_newest_checkpoint(run):
    task = make_task(make_config(run.parent))
    assert (read_trained_model(run).weights["fc1.bias"] == random_weights(task, seed=2)["fc1.bias"]).all()
    (run / "weights.safetensors").unlink()
    trained = read_trained_model(run)
    assert (trained.weights["fc1.bias"] == random_weights(task, seed=1)["fc1.bias"]).all()
    np.testing.assert_array_equal(trained.table(np.uint8), task.table)


def test_an_imported_run_has_no_model(tmp_path):
    RunWriter.create(tmp_path / "a", make_record(config=NotRecorded("imported"))).end("finished")
    with pytest.raises(UserError, match=r"not measured here.*Received"):
        read_trained_model(tmp_path / "a")


def constant_classifier(*outputs):
    """Return a stand-in for a framework: the same outputs for every image; it checks what it is given."""

    def build(trained):
        def classify(images):
            assert images.dtype == np.float32 and images.shape[1:] == trained.data.image_shape
            return np.tile(np.array(outputs, np.float32), (len(images), 1))

        return classify

    return build


def predict(*arguments, outputs=(0.0, 1.0, 0.0)):
    return run_prediction(constant_classifier(*outputs), [str(argument) for argument in arguments], program=PROGRAM)


def test_evaluation_prints_loss_accuracy_and_confusion(run, capsys):
    assert predict(run) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = load_dataset(DATASET).test.labels
    right = int((labels == 1).sum())
    log_sum = np.log(2 + np.e)
    loss = (right * (log_sum - 1) + (20 - right) * log_sum) / 20
    assert lines[0] == f"{DATASET}: test loss {loss:.4f}, accuracy {5 * right:.2f} % ({right}/20)"
    counts = [[int(cell) for cell in line.split()[-3:]] for line in lines[2:]]
    assert counts == [[0, int((labels == label).sum()), 0] for label in range(3)]


def test_files_get_classes_and_those_in_class_folders_a_confusion_matrix(run, capsys):
    names = load_dataset(DATASET).class_names
    files = [save_image(run.parent / names[label] / "a.png", np.zeros((8, 8, 4), np.uint8)) for label in (0, 0, 2)]
    # Flags may be between files.
    assert predict(run, files[0], "--invert", *files[1:], outputs=tuple(np.log([2.0, 1.0, 5.0]))) == 0
    note, *lines = capsys.readouterr().out.splitlines()
    assert note == f"note: images with transparent pixels, placed on white: 3 of 3, such as {files[0]}"
    shown = f"{names[2]} 62.5 %  {names[0]} 25.0 %  {names[1]} 12.5 %"
    assert lines[:3] == [f"{file}  {shown}" for file in files]
    assert [line.split()[-3:] for line in lines[4:]] == [["0", "0", "2"], ["0", "0", "0"], ["0", "0", "1"]]


@pytest.mark.parametrize("images", [(), ("none.png",)])
def test_user_errors_are_one_line_and_exit_code_2(images, run, capsys):
    assert predict(*[run, *images] if images else [run.parent / "none"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith(f"{PROGRAM}: error: ") and "none" in output.err


def test_a_data_set_that_has_changed_is_refused(run, capsys):
    text = (run / "run.json").read_text()
    for name in read_trained_model(run).data.class_names:
        text = text.replace(f'"{name}"', f'"other {name}"')
    (run / "run.json").write_text(text)
    assert predict(run) == 2
    assert "the data set has changed since the run" in capsys.readouterr().err
