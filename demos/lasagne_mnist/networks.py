"""Networks in plain Lasagne: `mlp`, `custom_mlp:DEPTH,WIDTH,DROP_INPUT,DROP_HIDDEN` and `cnn`."""

import warnings

import lasagne
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers

warnings.filterwarnings("ignore", module="lasagne")  # Lasagne 0.1 uses keywords that Theano renamed


def build_mlp(input_var, depth=2, width=800, drop_input=0.2, drop_hidden=0.5):
    """Build a multilayer perceptron; dropout layers with probability 0 are omitted."""
    network = layers.InputLayer((None, 784), input_var)
    if drop_input:
        network = layers.DropoutLayer(network, p=drop_input)
    for _ in range(depth):
        network = layers.DenseLayer(
            network, width, W=lasagne.init.GlorotUniform("relu"), nonlinearity=lasagne.nonlinearities.rectify
        )
        if drop_hidden:
            network = layers.DropoutLayer(network, p=drop_hidden)
    return layers.DenseLayer(network, 10, nonlinearity=lasagne.nonlinearities.softmax)


def build_cnn(input_var):
    """Build a network of two convolutions with max-pooling, a dense layer with dropout, and the output layer."""
    network = layers.ReshapeLayer(layers.InputLayer((None, 784), input_var), ([0], 1, 28, 28))
    for _ in range(2):
        network = layers.Conv2DLayer(
            network, 32, (5, 5), W=lasagne.init.GlorotUniform("relu"), nonlinearity=lasagne.nonlinearities.rectify
        )
        network = layers.MaxPool2DLayer(network, (2, 2))
    network = layers.DenseLayer(
        layers.DropoutLayer(network, p=0.5),
        256,
        W=lasagne.init.GlorotUniform("relu"),
        nonlinearity=lasagne.nonlinearities.rectify,
    )
    return layers.DenseLayer(layers.DropoutLayer(network, p=0.5), 10, nonlinearity=lasagne.nonlinearities.softmax)


def parse_model(model):
    """Return a function that builds a model from its input variable, and whether the model has random layers.

    Raises
    ------
    ValueError
        If the model is unknown.
    """
    name, _, options = model.partition(":")
    if name in ("mlp", "cnn") and not options:
        return {"mlp": build_mlp, "cnn": build_cnn}[name], True
    parts = options.split(",")
    try:
        depth, width = (int(part) for part in parts[:2])
        drop_input, drop_hidden = (float(part) for part in parts[2:])
    except ValueError:
        depth = width = drop_input = drop_hidden = -1
    if name != "custom_mlp" or min(depth, width) < 1 or not (0 <= drop_input < 1 and 0 <= drop_hidden < 1):
        raise ValueError(
            "model: expected mlp, cnn or custom_mlp:DEPTH,WIDTH,DROP_INPUT,DROP_HIDDEN (such as "
            f"custom_mlp:2,800,0.2,0.5), got {model!r}"
        )
    return (
        lambda input_var: build_mlp(input_var, depth, width, drop_input, drop_hidden),
        bool(drop_input or drop_hidden),
    )


def build_network(model, input_var, seed):
    """Build a network; initial values and dropout depend only on the seed."""
    lasagne.random.set_rng(np.random.RandomState(seed))
    return parse_model(model)[0](input_var)


def random_states(network):
    """Return the random states of the dropout layers; call this after building the training loss."""
    streams = [layer._srng for layer in layers.get_all_layers(network) if isinstance(layer, layers.DropoutLayer)]
    return [state for stream in streams for state, *_ in stream.state_updates]


def losses_of(network, target_var):
    """Return the training loss, and the validation loss and accuracy without dropout."""

    def loss(**kwargs):
        prediction = layers.get_output(network, **kwargs)
        return prediction, lasagne.objectives.categorical_crossentropy(prediction, target_var).mean()

    prediction, valid_loss = loss(deterministic=True)
    accuracy = T.mean(T.eq(T.argmax(prediction, axis=1), target_var), dtype=theano.config.floatX)
    return loss()[1], valid_loss, accuracy
