"""Order of collectives inside a library's ``scan``: the token of `graph.collectives` becomes an additional state.

::

    token --> [ step 0: c1 --> c2 ] --> [ step 1: c1 --> c2 ] --> ... --> token

A step's collectives follow all collectives of the previous step, and no library can move a collective out of the loop.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from .classes import Classes

#: Maps the outputs of an inner graph and a token to outputs with ordered collectives and the last token.
Order = Callable[[Sequence[Any], Any], Tuple[List[Any], Any]]


class Scans(NamedTuple):
    """Access to a library's scans, and changes to them."""

    classes: Classes
    #: Returns the inputs of a scan's inner graph.
    inner_inputs: Callable[[Any], Sequence[Any]]
    #: Returns the outputs of an operation's inner graph; () if it has none.
    inner_outputs: Callable[[Any], Sequence[Any]]
    #: Maps a scan, and inputs and outputs of an inner graph, to a scan with this graph. If ``has_token`` is True, the
    #: graph has the token as an additional state, after all other states.
    remade: Callable[..., Any]
    #: Maps an initial token and a number of steps to the array of the additional state.
    states: Callable[[Any, Any], Any]

    def is_while(self, op: Any) -> bool:
        """Return whether the last inner output of a scan is its stopping condition."""
        return bool(self.classes.steps(op).as_while)

    def in_order(
        self, op: Any, inputs: Sequence[Any], token: Optional[Any], order: Order
    ) -> Tuple[List[Any], Optional[Any]]:
        """Return the results of a scan with ordered collectives, and its last token (None without ``token``)."""
        before = self.classes.AllReduce.first_token() if token is None else token
        state, steps = before.type(), self.classes.steps(op)
        outputs, last = order(steps.outputs, state)
        # States with a single tap come last among the states, in inputs, outputs and taps.
        n_inner_inputs = steps.n_seqs + sum(map(len, steps.tap_array))
        n_inner_outputs = sum(map(len, steps.mit_mot_out_slices)) + steps.n_mit_sot + steps.n_sit_sot
        inner = _inserted(steps.inputs, n_inner_inputs, state), _inserted(outputs, n_inner_outputs, last)
        outer = _inserted(inputs, 1 + steps.n_seqs + steps.n_buffers, self.states(before, inputs[0]))
        results = list(self.remade(op, *inner, has_token=True).make_node(*outer).outputs)
        after = results.pop(steps.n_buffers)
        return results, None if token is None else after[-1]

    def changing(self, node: Any, is_changing: Callable[[Any], bool]) -> List[Any]:
        """Return a scan's inner inputs that may change: states with any outer input, others with their outer input."""
        op, inner = node.op, self.inner_inputs(node.op)
        same = [
            *zip(op.inner_seqs(inner), op.outer_seqs(node.inputs)),
            *zip(op.inner_non_seqs(inner), op.outer_non_seqs(node.inputs)),
        ]
        unchanged = {one for one, other in same if not is_changing(other)}
        if not any(map(is_changing, node.inputs)):
            return []
        return [variable for variable in inner if variable not in unchanged]


def _inserted(variables: Sequence[Any], position: int, variable: Any) -> List[Any]:
    return [*variables[:position], variable, *variables[position:]]
