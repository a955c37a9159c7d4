"""The library whose programs are measured: Theano, or PyTensor where that is what is installed, in words of both."""

import importlib.util

import synkhronos  # noqa: F401 (prepares what Theano needs)

IS_THEANO = importlib.util.find_spec("theano") is not None

if IS_THEANO:
    import theano as module
    import theano.tensor as T
else:
    import pytensor as module
    import pytensor.tensor as T
    import scipy.linalg.cython_blas  # noqa: F401 (what Numba's code calls: only of what is loaded can threads be limited)

NAME = "Theano" if IS_THEANO else "PyTensor"

function, shared, grad = module.function, module.shared, module.grad


def relu(x):
    """Return the positive part."""
    return T.nnet.relu(x) if IS_THEANO else T.maximum(x, 0)


def cross_entropy(scores, labels):
    """Return that of the softmax of each row, with its label."""
    if IS_THEANO:
        return T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels)
    return -T.special.log_softmax(scores, axis=-1)[T.arange(labels.shape[0]), labels]


def without_networks():
    """Return why the demos' networks, and rules of Lasagne's, cannot be measured; None if they can."""
    if not IS_THEANO:
        return "they are Lasagne's, which is written in Theano"
    missing = [name for name in ("lasagne", "mlxtend", "tqdm") if importlib.util.find_spec(name) is None]
    return "pip install " + " ".join(missing) if missing else None
