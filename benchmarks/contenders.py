"""Names of contenders that goals and tables look for, beside those of `at_once` and of `peers.group`."""

from .library import NAME

#: The serial program, by the library's own functions.
PLAIN = f"plain {NAME}"
#: Ours, an epoch in one command.
IN_STEPS = "synkhronos, steps"
#: Ours, with gradients that go through ``synk.ops.all_reduce``.
BY_HAND = "by hand"
#: Ours, with the other engine.
WITH_THEANO = "with Theano"
