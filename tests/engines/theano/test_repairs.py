"""Faults of Theano that `synkhronos.engines.theano.repairs` repairs."""

import gc
import os
import pickle
import weakref

import numpy as np
import pytest

theano = pytest.importorskip("theano")

import theano.tensor as T  # noqa: E402
from theano.gof import cmodule, compilelock  # noqa: E402

import synkhronos.engines.theano.engine  # noqa: E402, F401, which repairs
from synkhronos.engines.graph.rewrites import LATER  # noqa: E402
from synkhronos.engines.theano.rewrites import rewritten  # noqa: E402

pytestmark = pytest.mark.theano


class Key:
    """Part of a key that reads the file of keys while this file is being written."""

    file = None
    seen = []

    def __reduce__(self):
        if Key.file is not None:
            with open(Key.file, "rb") as file:
                Key.seen.append(pickle.load(file).module_hash)
        return Key, ()


def test_the_keys_of_a_module_are_whole_at_any_moment(tmp_path):
    file = str(tmp_path / "key.pkl")
    data = cmodule.KeyData({((1,), Key())}, "hash", file, str(tmp_path / "m.so"))
    data.save_pkl()
    Key.file, Key.seen = file, []
    try:
        data.save_pkl()
    finally:
        Key.file = None
    assert Key.seen == ["hash"]
    assert os.listdir(str(tmp_path)) == ["key.pkl"]


def test_keys_that_cannot_be_pickled_leave_no_file(tmp_path, caplog):
    file = tmp_path / "key.pkl"
    file.write_bytes(b"old")
    # On every Python version, pickle's message for this type is a PicklingError.
    unknown = type("unknown", (), {"__module__": __name__})
    with pytest.raises(pickle.PicklingError):  # Theano expects this error
        cmodule.KeyData({((1,), unknown)}, "hash", str(file), "m.so").save_pkl()
    assert not file.exists() and "unpickle-able" in caplog.text


def test_a_module_that_was_deleted_is_used_on(tmp_path):
    folder = tmp_path / "deleted"
    data = cmodule.KeyData({((1,), "one")}, "hash", str(folder / "key.pkl"), str(folder / "m.so"))
    data.add_key(((1,), "another"))
    assert not folder.exists() and len(data.keys) == 2


def test_variables_are_forgotten_after_a_gemm_that_cannot_be():
    """After Theano refuses an in-place ``a + dot(a, b)``, which would overwrite `a`, no variable is kept alive."""
    a, b = T.dmatrix("a"), T.dmatrix("b")
    q = T.tanh(a)
    f = theano.function([a, b], q - T.dot(q, b), mode="FAST_RUN")
    np.testing.assert_allclose(f(np.ones((2, 2)), np.eye(2)), np.zeros((2, 2)))
    variable = T.dmatrix("later")
    seen = weakref.ref(variable)
    del variable
    gc.collect()
    assert seen() is None


def test_the_lock_is_taken_soon_after_it_is_free(tmp_path, monkeypatch):
    folder, slept = tmp_path / "lock_dir", []
    folder.mkdir()
    (folder / "lock").write_text(f"{os.getppid()}_1_{compilelock.hostname}\n")

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            (folder / "lock").unlink()
            folder.rmdir()

    monkeypatch.setattr(compilelock.time, "sleep", sleep)
    compilelock.lock(str(folder))
    assert len(slept) == 3 and max(slept) < 0.1
    assert (folder / "lock").read_text().startswith(f"{os.getpid()}_")


def test_what_is_imaginary_may_be_written_into():
    """In-place operations on ``imag`` are correct with either linker, although Theano has no C code for ``imag``."""
    x = T.dvector("x")
    for linker in ("py", "cvm"):
        f = theano.function([x], T.tanh(x - x.imag), mode=theano.Mode(linker, "fast_run"))
        assert any(node.op.destroy_map for node in f.maker.fgraph.apply_nodes if hasattr(node.op, "destroy_map"))
        np.testing.assert_array_equal(f(np.arange(3.0)), np.tanh(np.arange(3.0)))


def test_a_bool_is_inverted_in_a_fused_operation():
    mask, x = T.vector(dtype="bool"), T.dvector("x")
    f = theano.function([mask, x], T.sqr(~mask) + T.sqr(x), mode=theano.Mode("py", "fast_run"))
    assert len(f.maker.fgraph.apply_nodes) == 1
    np.testing.assert_array_equal(f(np.array([True, False]), np.zeros(2)), [0, 1])


def test_a_length_of_a_variable_that_was_removed_is_not_used():
    """A gradient through `grad_clip` removes w, after x's second length has been replaced by w's."""
    x, w, v = T.dmatrix("x"), T.dmatrix("w"), T.dmatrix("v")
    total = theano.gradient.grad_clip((T.dot(x, w) * x).sum(axis=1), -1, 1).sum()
    expressions = [theano.grad(total, w), T.tensordot(x, v, axes=1)]
    found, _ = rewritten(expressions, theano.Mode(linker="py", optimizer="fast_run"), LATER)
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3.0)[:, None]
    f = theano.function([x, w, v], found, mode=theano.Mode(linker="py", optimizer=None), on_unused_input="ignore")
    for result, expected in zip(f(a, np.eye(3), b), (a.T.dot(a), a.dot(b))):
        np.testing.assert_allclose(result, expected)
