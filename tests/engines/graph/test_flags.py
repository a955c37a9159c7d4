"""`synkhronos.engines.graph.flags`: ranks compile with the flags that the program has set."""

import subprocess
import sys

import pytest
from library import IS_THEANO, NAME, L, T

from synkhronos.engines import pickling
from synkhronos.engines.graph.flags import NAMES

pytestmark = getattr(pytest.mark, NAME)

if IS_THEANO:
    import theano

    config, change = theano.config, theano.change_flags
else:
    import pytensor

    config, change = pytensor.config, pytensor.config.change_flags


def test_functions_are_loaded_with_the_flags_of_the_program(monkeypatch):
    x = T.dvector("x")
    f, engine, seen = L.function([x], x + 1, mode=L.quick), L.engine, []
    monkeypatch.setattr(pickling, "loads", lambda data, find: seen.append((config.openmp_elemwise_minsize, config.cxx)))
    before, cxx = config.openmp_elemwise_minsize, config.cxx
    with change(openmp_elemwise_minsize=7):
        data = engine.dumps([f], {}, {}, {})
    engine.loads(data, {}, None)
    assert seen == [(7, cxx)] and config.openmp_elemwise_minsize == before
    with change(cxx="/no/such/compiler"):  # for example, a file that another host lacks
        data = engine.dumps([f], {}, {}, {})
    engine.loads(data, {}, None)
    assert seen[1] == (before, cxx)


def test_flags_are_not_read_to_be_sent(tmp_path):
    """Sending flags does not read PyTensor's `blas.ldflags`, which takes 0.25 s and warns if there is no BLAS."""
    if IS_THEANO:
        pytest.skip("Theano reads it when it is imported")
    program = tmp_path / "program.py"
    program.write_text(
        "import pytensor\n"
        "from synkhronos.engines.pytensor.engine import PyTensorEngine\n"
        "parameter, flags = pytensor.config._config_var_dict['blas__ldflags'], PyTensorEngine().library.flags\n"
        "assert not hasattr(parameter, 'val') and 'blas__ldflags' not in flags.to_send()\n"
        "assert not hasattr(parameter, 'val')\n"
        "pytensor.config.blas__ldflags = '-lm'\n"
        "assert flags.to_send()['blas__ldflags'] == '-lm'\n"
    )
    subprocess.run([sys.executable, str(program)], check=True)


def test_every_library_has_most_of_the_flags():
    parameters = theano.configparser._config_var_list if IS_THEANO else config._config_var_dict.values()
    names = [getattr(parameter, "fullname", None) or parameter.name for parameter in parameters]
    assert len(L.engine.library.flags.names(names)) >= len(NAMES) - 1
    assert {"cxx", "openmp", "openmp_elemwise_minsize"} < set(L.engine.library.flags.to_send())
