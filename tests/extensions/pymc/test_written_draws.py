"""Arrays that the ranks write themselves, or that the master gathers because some ranks are on other hosts."""

import errno
import gc
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import synkhronos as synk

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')
xarray = pytest.importorskip("xarray")

import pytensor.tensor as pt  # noqa: E402
from pymc_models import marks, python_mode  # noqa: E402
from pytensor.compile.mode import get_mode  # noqa: E402

from synkhronos.extensions.pymc import compute_log_likelihood, pointwise, written_draws  # noqa: E402

pytestmark = marks()

#: (PyMC adds the constant log(2 pi) / 2 as a float32, so the expected values have 7 digits.)
SLOPES = np.array([[[0.3, -1.0], [2.0, 0.0]], [[0.1, 5.0], [-0.7, 0.4]], [[0.0, 0.0], [1e3, -1e3]]])


def regression(n_rows):
    x = np.random.default_rng(0).normal(size=(n_rows, 2))
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Normal("slopes", shape=2), 1.5, observed=x.sum(axis=1))
    draws = xarray.Dataset({"slopes": (("chain", "draw", "i"), SLOPES)})
    residuals = x.sum(axis=1) - SLOPES @ x.T
    expected = -0.5 * (residuals / 1.5) ** 2 - np.log(1.5) - 0.5 * np.log(2 * np.pi)
    return model, xarray.DataTree.from_dict({"posterior": draws}), expected


@pytest.mark.parametrize(
    "n_rows, is_written, in_file",
    [(1, True, False), (53, True, False), (53, True, True), (53, False, False), (53, False, True)],
)
def test_every_row_of_every_draw(make_world, monkeypatch, tmp_path, n_rows, is_written, in_file):
    """All draws' values are right, even if a rank has no rows or commands have unequal numbers of draws."""
    monkeypatch.setattr(pointwise, "COMMAND_BYTES", 4 * 8 * (n_rows + 2))
    if not is_written:
        monkeypatch.setattr(synk, "hosts", lambda: ["here", "there"])
    gathered = []
    put = written_draws.GatheredDraws.put
    monkeypatch.setattr(
        written_draws.GatheredDraws, "put", lambda self, *args: gathered.append(args) or put(self, *args)
    )
    make_world("fork", 2)
    model, trace, expected = regression(n_rows)
    out = tmp_path / "values.npy" if in_file else None
    compute_log_likelihood(trace, model, out=out, progressbar=False, mode=python_mode())
    found = trace["log_likelihood"]["y"].values
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    assert len(gathered) == (0 if is_written else SLOPES[..., 0].size)
    if in_file:
        np.testing.assert_array_equal(np.load(out), found)


def test_they_outlive_the_session_and_leave_nothing(make_world):
    make_world("fork", 2)
    model, trace, expected = regression(5)
    compute_log_likelihood(trace, model, progressbar=False, mode=python_mode())
    synk.close()
    values = trace["log_likelihood"]["y"].values
    np.testing.assert_allclose(values, expected, rtol=1e-7)
    child = os.fork()
    if not child:
        values[:] = 1
        os._exit(0)
    os.waitpid(child, 0)
    np.testing.assert_allclose(values, expected, rtol=1e-7)
    values[:] = 0  # the array is still writable
    del trace, values
    gc.collect()
    mapped = Path("/proc/self/maps").read_text()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [each for each in [*mapped.splitlines(), *opened] if "synkhronos-draws" in each]


def test_a_function_that_cannot_be_built_leaves_nothing(make_world, monkeypatch):
    make_world("fork", 2)
    model, trace, _ = regression(5)
    opened = []

    def refuse(*args, **options):
        opened.extend(os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        raise RuntimeError

    monkeypatch.setattr(pointwise, "synk", SimpleNamespace(function=refuse))
    with pytest.raises(RuntimeError):
        compute_log_likelihood(trace, model, progressbar=False, mode=python_mode())
    assert [each for each in opened if "synkhronos-draws" in each]
    gc.collect()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [each for each in opened if "synkhronos-draws" in each]


def test_a_wrong_number_of_rows_is_not_written(tmp_path):
    """A rank with a wrong number of rows returns 0, so that errors of two ranks cannot cancel out."""
    path = tmp_path / "values"
    path.write_bytes(b"before")
    for n_rows, expected in ((3, 0), (1, 0), (2, 2)):
        result = [[None]]
        write = written_draws.WriteRows(str(path), 0, 2)
        assert path.read_bytes() == b"before"
        write.perform(None, [np.ones(n_rows), np.arange(2), np.array(0)], result)
        assert result[0][0] == expected
    np.testing.assert_array_equal(np.fromfile(path), [1, 1])


def test_jax_cannot_write(make_world):
    make_world("threads", 2)
    rows = pt.dvector()
    assert [written_draws.can_be_written(rows, get_mode(mode)) for mode in ("NUMBA", "JAX")] == [True, False]


def test_a_disk_that_is_full(make_world, monkeypatch, tmp_path):
    """The program gets a full disk's error and can continue."""
    make_world("fork", 2)
    model, trace, expected = regression(5)
    create, out = written_draws.GatheredDraws._create, tmp_path / "values.npy"

    def full(self, shape):
        array = create(self, shape)
        out.unlink()
        out.symlink_to("/dev/full")
        return array

    monkeypatch.setattr(written_draws.GatheredDraws, "_create", full)
    with pytest.raises(OSError) as caught:
        compute_log_likelihood(trace, model, out=out, progressbar=False, mode=python_mode())
    assert caught.value.errno == errno.ENOSPC
    compute_log_likelihood(trace, model, progressbar=False, mode=python_mode())
    np.testing.assert_allclose(trace["log_likelihood"]["y"].values, expected, rtol=1e-7)
