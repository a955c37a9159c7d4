"""Save a Lasagne network in training, and go on from it, on any number of ranks.

The file is a plain ``.npz``. Its ``arr_0``, ``arr_1``, ... are what `lasagne.layers.get_all_param_values` returns, so
any Lasagne program can use the model::

    with np.load("model.npz") as file:
        n_params = len(lasagne.layers.get_all_params(network))
        lasagne.layers.set_all_param_values(network, [file["arr_%d" % i] for i in range(n_params)])

Beside them it has the update rule's own state and how far the training was. It is written beside the old file and then
takes its place in one step (POSIX ``rename``): whatever happens in between, one of the two is there, and whole.
"""

import os

import numpy as np
from lasagne import layers


def save(path, network, state=(), **progress):
    """Write network, rule's state and progress (numbers or arrays by name) into a file, or leave the old one as it is.

    All ranks hold the same values after a step, or after `average_batch_norm` for networks that need it, so the
    master's are the network.
    """
    arrays = {f"arr_{i}": value for i, value in enumerate(layers.get_all_param_values(network))}
    arrays.update({f"state_{i}": shared.get_value() for i, shared in enumerate(state)})
    arrays.update({"progress_" + name: value for name, value in progress.items()})
    new = path + ".new"
    with open(new, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())  # else a power failure could leave the name with an empty file
    os.replace(new, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path, network, state=()):
    """Put what `save` wrote into network and state; return the progress as a dict of arrays.

    Do so before `synkhronos.distribute`, which gives the master's values to all ranks, or `synkhronos.broadcast` them.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is of another network or rule; nothing has changed then.
    """
    with np.load(path) as file:
        arrays = dict(file)
    params = layers.get_all_params(network)
    for prefix, variables in (("arr_", params), ("state_", state)):
        saved = sum(name.startswith(prefix) for name in arrays)
        if saved != len(variables):
            raise ValueError(
                f"{path} has {saved} arrays {prefix}..., but {len(variables)} are needed: it is of another "
                "network or update rule"
            )
        for i, shared in enumerate(variables):
            value, expected = arrays[f"{prefix}{i}"], shared.get_value(borrow=True).shape
            if value.shape != expected:
                raise ValueError(
                    f"{path}: {prefix}{i} has shape {value.shape}, but {shared.name or 'the variable'} needs "
                    f"{expected}: it is of another network or update rule"
                )
    for prefix, variables in (("arr_", params), ("state_", state)):
        for i, shared in enumerate(variables):
            shared.set_value(arrays[f"{prefix}{i}"].astype(shared.dtype))
    return {name[len("progress_") :]: value for name, value in arrays.items() if name.startswith("progress_")}
