"""Training with pytensor-ml in a block of `synkhronos.functions` equals training without ranks, step by step.

The tables below are those of docs/pytensor_ml.rst: every layer and rule works or is refused.
"""

from pathlib import Path

import numpy as np
import pytest
from refusals import reports

import synkhronos as synk

pytest.importorskip("pytensor_ml")

from pytensor_ml import activations, layers, optim  # noqa: E402
from pytensor_ml.checkpoint import load_state, save_state  # noqa: E402
from pytensor_ml.layers import Input, Linear, Sequential  # noqa: E402
from pytensor_ml.loss import CrossEntropy, SquaredError  # noqa: E402
from pytensor_ml.model import Model  # noqa: E402
from pytensor_ml.params import TrainableParameter  # noqa: E402
from pytensor_ml.util import DataLoader  # noqa: E402

pytestmark = [pytest.mark.pytensor, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
CLASSES = 3
#: Kinds of data: type and shape of a row.
DATA = {"vectors": (None, (6,)), "images": (None, (8, 8, 1)), "sequences": (None, (5, 4)), "tokens": (7, (5,))}


def last(x):
    return x[:, -1]


def mean(x):
    return x.mean(axis=1)


def head(n_in):
    return Linear("head", n_in=n_in, n_out=CLASSES)


def relu():
    return activations.ReLU()


def attention_alone(x):
    return layers.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)[:, 0]


def convolution(**keywords):
    return layers.Conv2D("conv", **{**dict(in_channels=1, out_channels=2, kernel_size=3), **keywords})


#: Networks: kind of data, and the layers. A layer before a normalization has no bias, because the bias's gradient is
#: only rounding, which Adam enlarges.
NETWORKS = {
    "linear": ("vectors", lambda: [head(6)]),
    "mlp": ("vectors", lambda: [Linear("a", n_in=6, n_out=8), relu(), head(8)]),
    "batch norm": (
        "vectors",
        lambda: [Linear("a", n_in=6, n_out=8, bias=False), layers.BatchNorm("norm", n_in=8), relu(), head(8)],
    ),
    "layer norm": (
        "vectors",
        lambda: [Linear("a", n_in=6, n_out=8), layers.LayerNorm("norm", n_in=8), relu(), head(8)],
    ),
    "rms norm": ("vectors", lambda: [Linear("a", n_in=6, n_out=8), layers.RMSNorm("norm", n_in=8), relu(), head(8)]),
    "group norm": (
        "vectors",
        lambda: [Linear("a", n_in=6, n_out=8), layers.GroupNorm("norm", n_groups=2, n_in=8), relu(), head(8)],
    ),
    "convolution": (
        "images",
        lambda: [convolution(), relu(), layers.MaxPool2D("pool", kernel_size=2), layers.Flatten, head(18)],
    ),
    "convolution, strided": ("images", lambda: [convolution(stride=2), layers.Flatten, head(18)]),
    "convolution, batch norm, average pool": (
        "images",
        lambda: [
            convolution(bias=False),
            layers.BatchNorm("norm", n_in=2),
            relu(),
            layers.AvgPool2D("pool", kernel_size=2),
            layers.Flatten,
            head(18),
        ],
    ),
    "two convolutions": (
        "images",
        lambda: [
            convolution(),
            relu(),
            layers.Conv2D("second", in_channels=2, out_channels=2, kernel_size=3),
            layers.Flatten,
            head(32),
        ],
    ),
    "transposed convolution": (
        "images",
        lambda: [
            layers.ConvTranspose2D("conv", in_channels=1, out_channels=2, kernel_size=3),
            layers.Flatten,
            head(200),
        ],
    ),
    **{
        f"padding {kind.__name__}": (
            "images",
            lambda kind=kind, options=options: [
                layers.Conv2D("first", in_channels=1, out_channels=2, kernel_size=3),
                kind("pad", padding=1, **options),
                layers.Conv2D("second", in_channels=2, out_channels=2, kernel_size=3),
                layers.Flatten,
                head(72),
            ],
        )
        for kind, options in (
            (layers.ZeroPad2D, {}),
            (layers.ConstantPad2D, {"value": 2.0}),
            (layers.ReplicationPad2D, {}),
            (layers.ReflectionPad2D, {}),
        )
    },
    **{
        f"padding {kind.__name__}": (
            "sequences",
            lambda kind=kind, options=options: [
                layers.Conv1D("first", in_channels=4, out_channels=2, kernel_size=2),
                kind("pad", padding=1, **options),
                layers.Conv1D("second", in_channels=2, out_channels=2, kernel_size=2),
                layers.Flatten,
                head(10),
            ],
        )
        for kind, options in (
            (layers.ZeroPad1D, {}),
            (layers.ConstantPad1D, {"value": 2.0}),
            (layers.ReplicationPad1D, {}),
            (layers.ReflectionPad1D, {}),
        )
    },
    "convolutions, same size": (
        "images",
        lambda: [
            layers.Conv2D("first", in_channels=1, out_channels=2, kernel_size=3, padding="same"),
            relu(),
            layers.Conv2D("second", in_channels=2, out_channels=2, kernel_size=3, padding="same"),
            layers.Flatten,
            head(128),
        ],
    ),
    "upsampling": ("images", lambda: [layers.Upsample2D("up", scale_factor=2), layers.Flatten, head(256)]),
    "upsampling, bilinear": (
        "images",
        lambda: [layers.Upsample2D("up", scale_factor=2, mode="bilinear"), layers.Flatten, head(256)],
    ),
    "rnn": ("sequences", lambda: [layers.RNN("cell", n_in=4, n_hidden=5), last, head(5)]),
    "gru": ("sequences", lambda: [layers.GRU("cell", n_in=4, n_hidden=5), last, head(5)]),
    "lstm": ("sequences", lambda: [layers.LSTM("cell", n_in=4, n_hidden=5), last, head(5)]),
    "bidirectional": (
        "sequences",
        lambda: [
            layers.Bidirectional(layers.GRU("one", n_in=4, n_hidden=5), layers.GRU("other", n_in=4, n_hidden=5)),
            last,
            head(10),
        ],
    ),
    "embedding": ("tokens", lambda: [layers.Embedding("words", n_embeddings=7, n_features=4), mean, head(4)]),
    "attention": ("sequences", lambda: [layers.MultiheadAttention("attention", n_embd=4, n_head=2), mean, head(4)]),
    "causal attention": (
        "sequences",
        lambda: [layers.CausalSelfAttention("attention", n_embd=4, n_head=2), mean, head(4)],
    ),
    "transformer": ("sequences", lambda: [layers.TransformerBlock("block", d_model=4, n_head=2), mean, head(4)]),
    "convolution of sequences": (
        "sequences",
        lambda: [
            layers.Conv1D("conv", in_channels=4, out_channels=2, kernel_size=2),
            relu(),
            layers.Flatten,
            head(8),
        ],
    ),
    "max pool of sequences": (
        "sequences",
        lambda: [layers.MaxPool1D("pool", kernel_size=2), layers.Flatten, head(8)],
    ),
    "average pool of sequences": (
        "sequences",
        lambda: [layers.AvgPool1D("pool", kernel_size=2), layers.Flatten, head(8)],
    ),
    "transposed convolution of sequences": (
        "sequences",
        lambda: [
            layers.ConvTranspose1D("conv", in_channels=4, out_channels=2, kernel_size=2),
            layers.Flatten,
            head(12),
        ],
    ),
    "upsampling of sequences": (
        "sequences",
        lambda: [layers.Upsample1D("up", scale_factor=2), layers.Flatten, head(40)],
    ),
    "feed forward": ("sequences", lambda: [layers.FeedForward("ff", d_model=4), mean, head(4)]),
    "feed forward, gated": ("sequences", lambda: [layers.FeedForward("ff", d_model=4, gated=True), mean, head(4)]),
    "recurrent": ("sequences", lambda: [layers.Recurrent(layers.ElmanCell("cell", n_in=4, n_hidden=5)), last, head(5)]),
    "scaled dot product": ("sequences", lambda: [attention_alone, mean, head(4)]),
    "concatenate": ("vectors", lambda: [lambda x: layers.Concatenate([x, x**2], axis=1), head(12)]),
    "squeeze": ("vectors", lambda: [lambda x: layers.Squeeze(x[:, :, None], axis=2), head(6)]),
    **{
        name: ("vectors", lambda make=make: [Linear("a", n_in=6, n_out=8), make(), head(8)])
        for name, make in {
            "GELU": activations.GELU,
            "LeakyReLU": activations.LeakyReLU,
            "QuickGELU": activations.QuickGELU,
            "Sigmoid": activations.Sigmoid,
            "Softmax": activations.Softmax,
            "SoftPlus": activations.SoftPlus,
            "Swish": activations.Swish,
            "Tanh": activations.Tanh,
        }.items()
    },
}


def one_hot(classes):
    return np.eye(CLASSES)[classes]


def plateau():
    scale = optim.scalar_state("plateau/scale", fill_value=1.0)
    return optim.reduce_on_plateau(optim.sgd(scale * 0.05), scale, patience=2)


RULES = {
    "sgd": lambda: optim.sgd(0.05),
    "adam": lambda: optim.adam(1e-2),
    "adamw": lambda: optim.adamw(1e-2),
    "nadam": lambda: optim.nadam(1e-2),
    "adamax": lambda: optim.adamax(1e-2),
    "adagrad": lambda: optim.adagrad(1e-2),
    "adadelta": lambda: optim.adadelta(1.0),
    "rmsprop": lambda: optim.rmsprop(1e-2),
    "rprop": lambda: optim.rprop(1e-2),
    "clip_by_global_norm": lambda: optim.chain(optim.clip_by_global_norm(0.5), optim.adam(1e-2)),
    "clip_by_value": lambda: optim.chain(optim.clip_by_value(0.1), optim.sgd(0.05)),
    "cosine_schedule": lambda: optim.adam(optim.cosine_schedule(1e-2, 50)),
    "exponential_schedule": lambda: optim.sgd(optim.exponential_schedule(1e-2, 20, 1e-3)),
    "apply_if_finite": lambda: optim.apply_if_finite(optim.adam(1e-2)),
    "momentum": lambda: optim.sgd(0.05, momentum=0.9),
    "nesterov": lambda: optim.sgd(0.05, momentum=0.9, nesterov=True),
    "add_weight_decay": lambda: optim.chain(optim.sgd(0.05), optim.add_weight_decay(0.01)),
    "skip_if": lambda: optim.skip_if(optim.sgd(0.05), optim.large_step(0.04)),
    "reduce_on_plateau": plateau,
    "constant_schedule": lambda: optim.sgd(optim.constant_schedule(0.05)),
    "linear_schedule": lambda: optim.sgd(optim.linear_schedule(0.1, 15)),
    "linear_onecycle_schedule": lambda: optim.sgd(optim.linear_onecycle_schedule(0.1, 20)),
    "polynomial_schedule": lambda: optim.sgd(optim.polynomial_schedule(0.1, 15, power=2.0)),
    "step_decay": lambda: optim.sgd(optim.step_decay(0.1, decay_every=5)),
    "join_schedules": lambda: optim.sgd(
        optim.join_schedules([optim.constant_schedule(0.1), optim.linear_schedule(0.1, 10)], [5])
    ),
    "scale_by_schedule": lambda: optim.chain(optim.sgd(1.0), optim.scale_by_schedule(optim.linear_schedule(0.1, 15))),
}

#: Losses: the loss, the last layers of the network, and the targets of rows with these classes.
LOSSES = {
    "SquaredError": (SquaredError, [], one_hot),
    "SquaredError, sum": (lambda: SquaredError(reduction="sum"), [], one_hot),
    "CrossEntropy of probabilities": (CrossEntropy, [activations.Softmax()], np.asarray),
    "CrossEntropy, one-hot": (lambda: CrossEntropy(expect_logits=True, expect_onehot_labels=True), [], one_hot),
    "CrossEntropy, sum": (lambda: CrossEntropy(reduction="sum", expect_logits=True), [], np.asarray),
}

#: Tests of these cases run in every tier; tests of other cases run in `make test-long`.
NOT_LONG = "^(mlp|batch norm|convolution|padding ReflectionPad2D|max pool of sequences|lstm|embedding|transformer)$"
RULES_NOT_LONG = "^(sgd|adamw|rprop|clip_by_global_norm|apply_if_finite)$"


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine="pytensor")


@pytest.fixture
def threads(make_world, divided_updates):
    return make_world("threads", 3, 1, engine="pytensor")


def rows(kind, n):
    """Return n rows and their classes."""
    random, (n_words, shape) = np.random.RandomState(0), DATA[kind]
    x = random.randn(n, *shape) if n_words is None else random.randint(0, n_words, (n, *shape))
    return x, random.randint(0, CLASSES, n)


def model_of(kind, made):
    n_words, shape = DATA[kind]
    x = Input("X", shape=(None, *shape), **({} if n_words is None else dict(dtype="int64")))
    return Model(Sequential(*made)(x)).initialize(seed=0)


def compiled(kind, made, rule):
    model = model_of(kind, made)
    return model, model.compile_train(rule, CrossEntropy(expect_logits=True))


def equals_plain(kind, network, rule):
    """Train with and without ranks, for 20 steps with batches of three sizes; compare all losses and weights."""
    plain, serial = compiled(kind, network(), rule())
    with synk.functions():
        ours, step = compiled(kind, network(), rule())
    assert isinstance(step, synk.Function)
    x, y = rows(kind, 13)
    for n in [13] * 10 + [11] * 9 + [1]:
        np.testing.assert_allclose(step(x[:n], y[:n]), serial(x[:n], y[:n]), rtol=1e-9)
    for one, other in zip(ours.weights, plain.weights):
        np.testing.assert_allclose(one.get_value(), other.get_value(), rtol=1e-7, atol=1e-10, err_msg=one.name)
    assert synk.in_sync(ours.weights)
    return step


@pytest.mark.long(but=NOT_LONG)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks(threads, network):
    kind, made = NETWORKS[network]
    rule = RULES["sgd" if "attention" in network or network == "transformer" else "adam"]
    equals_plain(kind, made, rule)


@pytest.mark.long(but=RULES_NOT_LONG)
@pytest.mark.parametrize("rule", RULES)
def test_rules(threads, rule):
    equals_plain("vectors", NETWORKS["mlp"][1], RULES[rule])


@pytest.mark.long(but="^CrossEntropy of")
@pytest.mark.parametrize("loss", LOSSES)
def test_losses(threads, loss):
    make_loss, last_layers, targets_of = LOSSES[loss]

    def compiled_step():
        return model_of("vectors", [head(6), *last_layers]).compile_train(optim.sgd(0.05), make_loss())

    with synk.functions():
        step = compiled_step()
    plain, (x, y) = compiled_step(), rows("vectors", 13)
    for n in [13] * 10 + [11] * 9 + [1]:
        np.testing.assert_allclose(step(x[:n], targets_of(y[:n])), plain(x[:n], targets_of(y[:n])), rtol=1e-9)


@pytest.mark.parametrize("network", ["mlp", "batch norm"])
def test_on_processes_too(world, network):
    step = equals_plain(*NETWORKS[network], RULES["adam"])
    assert len(step.sharding().collectives) == {"mlp": 1, "batch norm": 5}[network]


@pytest.mark.long
def test_a_line_search_is_refused(threads):
    with reports(ValueError, "update"), synk.functions():
        compiled("vectors", NETWORKS["mlp"][1](), optim.lbfgs())


def test_regression_predictions_and_epochs(threads):
    """Predictions are computed by rows, and `steps` runs epochs of pytensor-ml's training step."""
    x, _ = rows("vectors", 13)
    y = x[:, :CLASSES] ** 2
    batches = [[0, 1, 2, 3, 4], [12, 5, 6], [7], [8, 9, 10, 11]]
    plain = model_of("vectors", NETWORKS["mlp"][1]())
    serial = plain.compile_train(optim.adam(1e-2), SquaredError())
    losses = [serial(x[batch], y[batch]) for batch in batches * 2]
    with synk.functions() as built:
        ours = model_of("vectors", NETWORKS["mlp"][1]())
        step = ours.compile_train(optim.adam(1e-2), SquaredError())
        predictions = ours.predict(x)
    np.testing.assert_allclose(step.steps(x, y, batches=batches * 2), losses, rtol=1e-9)
    assert len(built) == 2 and built[1].output_modes == ["gather"]
    np.testing.assert_allclose(ours.predict(x), plain.predict(x), rtol=1e-9)
    assert predictions.shape == (13, CLASSES)
    assert all(isinstance(one, TrainableParameter) for one in ours.weights)


def test_loader_and_checkpoint(threads, tmp_path):
    """Batches of pytensor-ml, in calls and as indices in `steps`, and its files work as without ranks."""
    pytest.importorskip("safetensors")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(50, 4)), random.normal(size=(50, 1))

    def compiled_step():
        first = Input("x", shape=(None, 4))
        model = Model(Linear("last", n_in=4, n_out=1)(first)).initialize(seed=0)
        return model.compile_train(optim.adam(1e-2), SquaredError())

    def loader(seed):
        return DataLoader(x, y, batch_size=16, random_state=seed)

    with synk.functions():
        step = compiled_step()
    plain, batches, of_plain = compiled_step(), loader(1), loader(1)
    for _ in range(5):
        np.testing.assert_allclose(step(*batches()), plain(*of_plain()), rtol=1e-9)
    save_state(step.get_shared(), tmp_path / "state.safetensors")
    for variable in step.get_shared():
        variable.set_value(np.zeros_like(variable.get_value()))
    load_state(step.get_shared(), tmp_path / "state.safetensors")
    losses = step.steps(synk.data(x), synk.data(y), batches=[batches.move_cursor() for _ in range(4)])
    np.testing.assert_allclose(np.ravel(losses), [float(plain(*of_plain())) for _ in range(4)], rtol=1e-9)


def test_the_program_of_the_page(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from pytensor_ml_digits import main

    losses, serial, difference = main(rows=256, batch=64)
    np.testing.assert_allclose(np.ravel(losses), np.ravel(serial), rtol=1e-9)
    assert difference < 1e-9 and "difference" in capsys.readouterr().out
