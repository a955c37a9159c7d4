"""Data-parallel Theano: write one serial program, run every call on all devices at once."""

from synkhronos.engines.theano_setup import prepare

prepare()
del prepare
