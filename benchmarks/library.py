"""Common names for the library of the measured programs: Theano if it is installed, and PyTensor otherwise."""

import importlib.util

import synkhronos  # noqa: F401 (prepares the import of Theano)

IS_THEANO = importlib.util.find_spec("theano") is not None

if IS_THEANO:
    import theano as module
    import theano.tensor as T
else:
    import pytensor as module
    import pytensor.tensor as T
    import scipy.linalg.cython_blas  # noqa: F401 (loads Numba's BLAS now, so that its threads can be limited)

NAME = "Theano" if IS_THEANO else "PyTensor"

function, shared, grad = module.function, module.shared, module.grad


def relu(x):
    """Return the positive part of each element."""
    return T.nnet.relu(x) if IS_THEANO else T.maximum(x, 0)


def cross_entropy(scores, labels):
    """Return the cross-entropy of each row's softmax with its label."""
    if IS_THEANO:
        return T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels)
    return -T.special.log_softmax(scores, axis=-1)[T.arange(labels.shape[0]), labels]


def without_networks():
    """Return the reason why the demos' networks and Lasagne's rules cannot be measured; None if they can."""
    if not IS_THEANO:
        return "it needs Lasagne, which is written for Theano"
    missing = [name for name in ("lasagne", "mlxtend", "tqdm") if importlib.util.find_spec(name) is None]
    return "pip install " + " ".join(missing) if missing else None
