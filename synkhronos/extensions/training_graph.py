"""One training step as expressions: first of rows, then of the mean of their gradients; or all in one."""

import inspect
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .gradients import check_loss
from .parameters import check_params, describe
from .scalars import check_scalars
from .train_theano import COMBINE

#: The ops of outputs: those that the serial twin has, too, and each of them with the prefix for the CPU transport.
OPS = [prefix + op for prefix in ("", "c_") for op in COMBINE]


class TrainingGraph(NamedTuple):
    """The expressions of one training step.

    Attributes
    ----------
    inputs : list of variables
        Those whose rows are divided over the ranks: ``x``, then ``y``.
    outputs : list of (expression, op)
        The loss, then the further outputs.
    params : list of shared variables
        What is trained.
    grad_updates : dict
        From shared gradients to expressions of the rows.
    param_updates : dict
        From parameters and the rule's state to expressions of the shared gradients.
    grad_shared : list of shared variables
        The keys of ``grad_updates``.
    state : list of shared variables
        What the rule keeps between steps, in a fixed order.
    pieces : dict
        From those shared gradients that are flat vectors to their pieces; see `FlatGradients`.
    rule_updates : dict
        The ``param_updates`` before gradients were clipped.
    max_norm : list
        The bound of their norm, or nothing.
    """

    inputs: List[Any]
    outputs: List[Tuple[Any, Any]]
    params: List[Any]
    grad_updates: Dict[Any, Any]
    param_updates: Dict[Any, Any]
    grad_shared: List[Any]
    state: List[Any]
    pieces: Dict[Any, List[Tuple[Any, Any]]]
    rule_updates: Dict[Any, Any]
    max_norm: List[Any]

    def results(self) -> Any:
        """Return the outputs as `synkhronos.function` takes them: one alone if it is alone."""
        return self.outputs if len(self.outputs) > 1 else self.outputs[0]

    def read_by_step(self, givens: Sequence[Tuple[Any, Any]]) -> List[Any]:
        """Return what the givens, which are for the gradients, would replace in the rule's step as well."""
        read = set(theano.gof.graph.ancestors(self.rule_updates.values()))
        return [variable for variable, _ in givens if variable in read]

    def updates_in_one(self, mean: Callable[[List[Any]], Sequence[Any]]) -> Dict[Any, Any]:
        """Return the updates of one function that makes the whole step: its graph has the gradients' mean inside.

        The step reads each mean where the collective leaves it: nothing is put into a flat vector and taken out again.
        A shared gradient is updated only if its own expression reads it.
        """
        read: Dict[Any, Any] = OrderedDict()  # from what the step reads of gradients to expressions of the rows
        for shared in self.grad_shared:
            read.update(self.pieces.get(shared) or [(shared, self.grad_updates[shared])])
        means = dict(zip(read, mean(list(read.values()))))
        updates: Dict[Any, Any] = OrderedDict()
        for shared, new in self.grad_updates.items():
            if shared not in self.pieces and (shared not in means or shared in theano.gof.graph.inputs([new])):
                updates[shared] = means.get(shared, new)
        new_values = dict(updates)
        new_values.update(zip(means, clipped(list(means.values()), *self.max_norm)))
        for flat, pieces in self.pieces.items():
            joined = T.join(0, *[T.flatten(new_values[view]) for view, _ in pieces])
            new_values[flat] = T.patternbroadcast(joined, flat.broadcastable)
        updates.update(zip(self.rule_updates, substituted(list(self.rule_updates.values()), new_values)))
        return updates


def training_graph(
    loss: Any,
    params: Any,
    x: Any,
    y: Any,
    update_rule: Any,
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    outputs: Any,
    max_norm: Any,
) -> TrainingGraph:
    """Call the rule, and clip the gradients that its step reads; refuse every argument that is wrong."""
    params = check_params(params)
    inputs = check_inputs("x", x) + check_inputs("y", y)
    if isinstance(loss, (list, tuple)):
        hint = "add up its entries, or give further expressions as outputs"
        expected = "a floating-point expression of 0 dimensions"
        raise ArgumentTypeError("loss", expected, f"a {type(loss).__name__}", hint)
    check_loss(loss, "loss")
    grad_updates, rule_updates, grad_shared = apply_rule(update_rule, loss, params, args, kwargs)
    grad_shared = list(grad_shared) if isinstance(grad_shared, (list, tuple)) else [grad_shared]
    bound = [] if max_norm is None else check_max_norm(max_norm)
    scaled = dict(zip(grad_shared, clipped(grad_shared, *bound)))
    param_updates = OrderedDict(zip(rule_updates, substituted(list(rule_updates.values()), scaled)))
    for shared, new in param_updates.items():
        for variable in theano.gof.graph.inputs([new]):
            if not isinstance(variable, (theano.Constant, theano.compile.SharedVariable)):
                raise ArgumentValueError(
                    f"the step of {shared}",
                    "an expression of shared variables, since it has no inputs",
                    f"one that depends on {describe(variable)}",
                    "make it (a learning rate, say) a shared variable, and change its value with synkhronos.broadcast",
                )
    state = [shared for shared in param_updates if shared not in params]
    return TrainingGraph(
        inputs,
        [(loss, "avg")] + check_outputs(outputs),
        params,
        OrderedDict(grad_updates),
        param_updates,
        grad_shared,
        state,
        getattr(grad_updates, "pieces", {}),
        OrderedDict(rule_updates),
        bound,
    )


def check_inputs(name: str, given: Any) -> List[Any]:
    """Return an argument that is a variable, a list of them, or None, as a list."""
    if given is None:
        return []
    listed = [given] if isinstance(given, theano.Variable) or not isinstance(given, Iterable) else list(given)
    for variable in listed:
        if not isinstance(variable, theano.Variable) or variable.owner or isinstance(variable, theano.Constant):
            raise ArgumentTypeError(name, "the variable of an input, or a list of them", describe(variable))
        if isinstance(variable, theano.compile.SharedVariable):
            raise ArgumentTypeError(
                name,
                "the variable of an input, or a list of them",
                f"{describe(variable)}, which is a shared variable and needs no input",
                "give it as one of sliceable_shareds if it holds rows",
            )
    return listed


def check_outputs(outputs: Any) -> List[Tuple[Any, Any]]:
    """Return the further outputs as pairs of expression and op; refuse ops that they cannot have."""
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
                "a floating-point expression, since integers have no average",
                output.dtype,
                "give it another op, or cast it to a float",
            )
        pairs.append((output, op))
    return pairs


def apply_rule(rule: Any, loss: Any, params: List[Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Return what the rule returns for loss and parameters; refuse what is not a rule, or has no such options."""
    if not callable(rule):
        expected = "a rule of synkhronos.extensions.updates, or a function like these"
        raise ArgumentTypeError("update_rule", expected, describe(rule))
    name = getattr(rule, "__name__", repr(rule))
    try:
        signature = inspect.signature(rule)
        signature.bind(loss, params, *args, **kwargs)
    except TypeError as error:
        options = ", ".join(list(signature.parameters)[2:])
        raise ArgumentTypeError(f"update_rule {name}", f"only its options {options}", f"others: {error}") from None
    made = rule(loss, params, *args, **kwargs)
    if not isinstance(made, tuple) or len(made) != 3 or not all(isinstance(part, Mapping) for part in made[:2]):
        raise ArgumentTypeError(
            f"update_rule {name}",
            "it to return (grad_updates, param_updates, grad_shared)",
            type(made).__name__,
            "the rules that do, with Lasagne's names, are in synkhronos.extensions.updates",
        )
    return made


def check_max_norm(max_norm: Any) -> List[Any]:
    """Return the bound of the norm, in a list; refuse what is not a positive scalar."""
    checked = check_scalars(max_norm=max_norm)
    if isinstance(checked[0], float) and checked[0] <= 0:
        raise ArgumentValueError("max_norm", "a positive number", repr(max_norm))
    return checked


def clipped(gradients: Sequence[Any], *max_norm: Any) -> List[Any]:
    """Return all gradients scaled to a global norm of at most ``max_norm``, or as they are if there is none.

    ``g := g * c / max(|g|, c)``; ``|g|`` is the Euclidean norm over the gradients of all parameters (Pascanu,
    Mikolov & Bengio, 2013, On the difficulty of training recurrent neural networks, ICML, section 3.2). The gradients
    are the mean over all rows already, and so is what has this norm.
    """
    if not max_norm:
        return list(gradients)
    # In float32 at least: the squares of half-precision numbers overflow at 256.
    wide = [T.cast(grad, theano.scalar.upcast(grad.dtype, "float32")) for grad in gradients]
    norm = T.sqrt(sum(T.sum(T.sqr(grad)) for grad in wide))
    bound = T.cast(max_norm[0], norm.dtype)
    scale = bound / T.maximum(norm, bound)
    return [grad * T.cast(scale, grad.dtype) for grad in gradients]


def substituted(expressions: Sequence[Any], new: Dict[Any, Any]) -> List[Any]:
    """Return expressions in which some variables are replaced; all that does not depend on these is the same object.

    (``theano.clone`` copies what the new variables are made of, too, so that a collective would be there twice.)
    """
    found = dict(new)
    for node in theano.gof.graph.io_toposort(list(new), expressions):
        inputs = [found.get(variable, variable) for variable in node.inputs]
        if any(one is not other for one, other in zip(inputs, node.inputs)):
            found.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs))
    return [found.get(variable, variable) for variable in expressions]
