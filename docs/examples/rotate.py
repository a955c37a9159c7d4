"""A collective: every rank receives the value of the preceding rank."""

from synkhronos.collectives.arguments import checked
from synkhronos.collectives.command import CollectiveCommand, taken


class Rotate(CollectiveCommand):
    """Set every rank's values to those of the preceding rank."""

    title = "rotate"

    def run(self, context):
        _, arrays = context.bind(self.numbers)  # this rank's values, in memory that other ranks can read
        handles = context.transport.exchange([context.pool.handle(array) for array in arrays])
        before = [context.pools.attach(handle) for handle in handles[context.rank - 1]]
        results = taken(context, self.numbers, before, [None] * len(before))
        context.transaction.commit_values(context.entries(self.numbers), results)  # on all ranks, or on none


def rotate(shared_vars):
    """Set every rank's values to those of the preceding rank: ``x_r := x_{r-1}``, and ``x_0 := x_{n-1}``."""
    variables = checked(shared_vars)
    variables.session.run(Rotate(variables.numbers))
