"""Expressions of one training step: gradients and update, in separate graphs or in one graph."""

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Dict, List, Sequence, Tuple

import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .gradients import check_loss
from .scalars import check_scalars
from .shared_variables import check_params, describe
from .train_theano import COMBINE

#: The ops allowed for outputs: those of the serial equivalent, with or without "c_", the prefix for the CPU transport.
OPS = [prefix + op for prefix in ("", "c_") for op in COMBINE]


class TrainingGraph:
    """The expressions of one training step, with clipped gradients.

    ``inputs`` are divided by rows and contain ``x``, then ``y``. ``outputs`` are pairs of an expression and its op,
    starting with the loss. ``grad_updates`` maps shared gradients to expressions in terms of the rows, and
    ``param_updates`` maps parameters and state to expressions in terms of gradients.
    """

    def __init__(
        self, loss: Any, params: Any, x: Any, y: Any, rule: Any, args: Any, kwargs: Any, outputs: Any, max_norm: Any
    ) -> None:
        self.params = check_params(params)
        self.inputs = check_inputs("x", x) + check_inputs("y", y)
        if isinstance(loss, (list, tuple)):
            hint = "add its entries, or pass additional expressions as outputs"
            expected = "a 0-dimensional floating-point expression"
            raise ArgumentTypeError("loss", expected, f"a {type(loss).__name__}", hint)
        check_loss(loss, "loss")
        grad_updates, rule_updates, grad_shared = apply_rule(rule, loss, self.params, args, kwargs)
        self.grad_updates, self._rule_updates = OrderedDict(grad_updates), OrderedDict(rule_updates)
        self.grad_shared: List[Any] = list(grad_shared) if isinstance(grad_shared, (list, tuple)) else [grad_shared]
        self._pieces: Dict[Any, List[Tuple[Any, Any]]] = getattr(grad_updates, "pieces", {})
        self._max_norm = [] if max_norm is None else check_max_norm(max_norm)
        self.param_updates = self._step(dict(zip(self.grad_shared, clipped(self.grad_shared, *self._max_norm))))
        for shared, new in self.param_updates.items():
            for variable in theano.gof.graph.inputs([new]):
                if not isinstance(variable, (theano.Constant, theano.compile.SharedVariable)):
                    raise ArgumentValueError(
                        f"the step of {shared}",
                        "an expression of shared variables, because the step has no inputs",
                        f"an expression of {describe(variable)}",
                        "make it (for example, a learning rate) a shared variable, and change it with "
                        "synkhronos.broadcast",
                    )
        self.state = [shared for shared in self.param_updates if shared not in self.params]
        self.outputs = [(loss, "avg")] + check_outputs(outputs)

    def _step(self, new: Dict[Any, Any]) -> Dict[Any, Any]:
        """Return the rule's updates of parameters and state, with new expressions for some variables."""
        return OrderedDict(zip(self._rule_updates, substituted(list(self._rule_updates.values()), new)))

    def results(self) -> Any:
        """Return the outputs in the form that `synkhronos.function` expects: a list, or a single output."""
        return self.outputs if len(self.outputs) > 1 else self.outputs[0]

    def read_by_step(self, givens: Sequence[Tuple[Any, Any]]) -> List[Any]:
        """Return the variables that ``givens`` replaces and the rule's step reads."""
        read = set(theano.gof.graph.ancestors(self._rule_updates.values()))
        return [variable for variable, _ in givens if variable in read]

    def updates_in_one(self, mean: Callable[[List[Any]], Sequence[Any]]) -> Dict[Any, Any]:
        """Return the updates of one function for the whole step; ``mean`` averages the gradients inside its graph.

        The step reads each mean directly, not from a flat vector. A shared gradient is updated only if its own
        expression reads it.
        """
        read: Dict[Any, Any] = OrderedDict()  # maps gradients, as read by the step, to expressions in terms of the rows
        for shared in self.grad_shared:
            read.update(self._pieces.get(shared) or [(shared, self.grad_updates[shared])])
        means = dict(zip(read, mean(list(read.values()))))
        updates: Dict[Any, Any] = OrderedDict()
        for shared, new in self.grad_updates.items():
            if shared not in self._pieces and (shared not in means or shared in theano.gof.graph.inputs([new])):
                updates[shared] = means.get(shared, new)
        new_values = dict(updates)
        new_values.update(zip(means, clipped(list(means.values()), *self._max_norm)))
        for flat, pieces in self._pieces.items():
            joined = T.join(0, *[T.flatten(new_values[view]) for view, _ in pieces])
            new_values[flat] = T.patternbroadcast(joined, flat.broadcastable)
        updates.update(self._step(new_values))
        return updates


def check_inputs(name: str, given: Any) -> List[Any]:
    if given is None:
        return []
    listed = [given] if isinstance(given, theano.Variable) or not isinstance(given, Iterable) else list(given)
    for variable in listed:
        if not isinstance(variable, theano.Variable) or variable.owner or isinstance(variable, theano.Constant):
            raise ArgumentTypeError(name, "an input variable, or a list of input variables", describe(variable))
        if isinstance(variable, theano.compile.SharedVariable):
            raise ArgumentTypeError(
                name,
                "an input variable, or a list of input variables",
                f"{describe(variable)}, which is a shared variable and needs no input",
                "list it in sliceable_shareds if it contains rows",
            )
    return listed


def check_outputs(outputs: Any) -> List[Tuple[Any, Any]]:
    pairs = []
    for i, entry in enumerate(outputs if isinstance(outputs, list) else [outputs] if outputs != () else []):
        output, op = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, "avg")
        if not isinstance(output, theano.Variable):
            raise ArgumentTypeError(f"outputs[{i}]", "an expression or (expression, op)", describe(entry))
        if op is not None and op not in OPS:
            expected = f"a known op ({', '.join(sorted(OPS))} or None)"
            raise ArgumentValueError(f"outputs[{i}]", expected, f"the unknown op {op!r}")
        if op in ("avg", "c_avg") and output.dtype in T.discrete_dtypes:
            raise ArgumentTypeError(
                f"outputs[{i}] ({output})",
                "a floating-point expression, because integers have no average",
                output.dtype,
                "use another op, or cast it to a float",
            )
        pairs.append((output, op))
    return pairs


def apply_rule(rule: Any, loss: Any, params: List[Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    if not callable(rule):
        expected = "a rule of synkhronos.extensions.updates, or a function with the same interface"
        raise ArgumentTypeError("update_rule", expected, describe(rule))
    name = getattr(rule, "__name__", repr(rule))
    try:
        signature = inspect.signature(rule)
        signature.bind(loss, params, *args, **kwargs)
    except TypeError as error:
        options = ", ".join(list(signature.parameters)[2:])
        raise ArgumentTypeError(
            f"update_rule {name}", f"only its options ({options})", f"invalid arguments ({error})"
        ) from None
    made = rule(loss, params, *args, **kwargs)
    if not isinstance(made, tuple) or len(made) != 3 or not all(isinstance(part, Mapping) for part in made[:2]):
        raise ArgumentTypeError(
            f"update_rule {name}",
            "a return value of the form (grad_updates, param_updates, grad_shared)",
            type(made).__name__,
            "use the rules of synkhronos.extensions.updates, which have Lasagne's names",
        )
    return made


def check_max_norm(max_norm: Any) -> List[Any]:
    checked = check_scalars(max_norm=max_norm)
    if isinstance(checked[0], float) and checked[0] <= 0:
        raise ArgumentValueError("max_norm", "a positive number", repr(max_norm))
    return checked


def clipped(gradients: Sequence[Any], *max_norm: Any) -> List[Any]:
    """Return the gradients, scaled to a global norm of at most ``max_norm`` if it is passed.

    The formula is ``g := g * c / max(|g|, c)``, with the Euclidean norm over all parameters (Pascanu, Mikolov & Bengio,
    2013, On the difficulty of training recurrent neural networks, ICML, section 3.2).
    """
    if not max_norm:
        return list(gradients)
    # Computed at least in float32, because the square of 256 overflows in half precision.
    wide = [T.cast(grad, theano.scalar.upcast(grad.dtype, "float32")) for grad in gradients]
    norm = T.sqrt(sum(T.sum(T.sqr(grad)) for grad in wide))
    bound = T.cast(max_norm[0], norm.dtype)
    scale = bound / T.maximum(norm, bound)
    return [grad * T.cast(scale, grad.dtype) for grad in gradients]


def substituted(expressions: Sequence[Any], new: Dict[Any, Any]) -> List[Any]:
    """Return expressions with some variables replaced, without copying subgraphs independent of these variables.

    ``theano.clone`` would also copy the graphs of the new variables, and thus duplicate a collective.
    """
    found = dict(new)
    for node in theano.gof.graph.io_toposort(list(new), expressions):
        inputs = [found.get(variable, variable) for variable in node.inputs]
        if any(one is not other for one, other in zip(inputs, node.inputs)):
            found.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs))
    return [found.get(variable, variable) for variable in expressions]
