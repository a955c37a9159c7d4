"""Batch normalization per rank, as in later versions of Lasagne (version 0.1 does not provide it)."""

from synkhronos.extensions import batch_norm


class BatchNormLayer(batch_norm.BatchNormLayer):
    """Batch normalization by the mean and variance of this rank's rows (in a ``theano.function``, of all rows)."""

    def statistics(self, input):
        return input.mean(self.axes), input.var(self.axes)
