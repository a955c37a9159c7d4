"""PyTorch's DistributedDataParallel with Gloo, for the networks of demos/lasagne_mnist, with one thread per process."""

import os
import sys
from pathlib import Path

from .gloo import Gloo

DEMOS = Path(__file__).resolve().parents[2] / "demos"


class Ddp(Gloo):
    """Peer that trains a network in all processes, or, for names such as ``mlp alone``, in the first process only."""

    #: Gradients stay in the buckets that are reduced, and the graph is the same in every step.
    options = dict.fromkeys(("gradient_as_bucket_view", "static_graph"), "DDP_STATIC" in os.environ)

    def prepare(self, what, mine):
        """Return a function that trains for an epoch; see `Forked`."""
        sys.path += [str(DEMOS), str(DEMOS / "lasagne_mnist")]
        import mnist_data
        from minibatches import iter_minibatch_idxs

        torch = self.torch
        model, _, alone = what.partition(" ")
        if alone and self.rank:
            return (lambda: None), None, None
        torch.manual_seed(0)
        network = NETWORKS[model](torch.nn)
        if not alone:
            network = torch.nn.parallel.DistributedDataParallel(network, **self.options)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        digits = mnist_data.load()
        images, labels = torch.from_numpy(digits.X_train), torch.from_numpy(digits.y_train.astype("int64"))
        part = slice(None) if alone else slice(self.rank, None, self.size)
        batches = [torch.from_numpy(rows[part].copy()) for rows in iter_minibatch_idxs(len(images), 200, 0, 0)]
        loss_of = torch.nn.CrossEntropyLoss()

        def epoch():
            for rows in batches:
                optimizer.zero_grad()
                loss = loss_of(network(images[rows]), labels[rows])
                loss.backward()
                optimizer.step()
                loss.item()

        return epoch, None, None


def mlp(nn):
    """Return the network of the demo's ``--model mlp``."""
    layers, n = [nn.Dropout(0.2)], 784
    for _ in range(2):
        layers += [nn.Linear(n, 800), nn.ReLU(), nn.Dropout(0.5)]
        n = 800
    return nn.Sequential(*layers, nn.Linear(n, 10))


def cnn(nn):
    """Return the network of the demo's ``--model cnn``."""
    layers, n = [nn.Unflatten(1, (1, 28, 28))], 1
    for _ in range(2):
        layers += [nn.Conv2d(n, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
        n = 32
    layers += [nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)]
    return nn.Sequential(*layers)


NETWORKS = {"mlp": mlp, "cnn": cnn}
