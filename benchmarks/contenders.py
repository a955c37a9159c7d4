"""Contender names in goals and tables; `at_once` and `peers.group` define additional names."""

from .library import NAME

#: The serial program, with functions of Theano or PyTensor.
PLAIN = f"plain {NAME}"
#: Our program, with an epoch in one command.
IN_STEPS = "synkhronos, steps"
#: Our program, with gradients averaged explicitly with ``synk.ops.all_reduce``.
BY_HAND = "explicit all_reduce"
#: Our program with Theano, for comparison with PyTensor.
WITH_THEANO = "with Theano"
#: The same call, after `set_value` of a variable that it does not use.
UNUSED = "unused variable"
