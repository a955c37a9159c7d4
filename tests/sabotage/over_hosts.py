"""A program over several hosts that is sabotaged from outside: ``over_hosts.py RECORD PER_HOST WIDTH HEAL [HOSTS]``.

It repeats all operations until one fails, then continues with the remaining hosts, and ends. It writes events into the
file RECORD, one line of JSON for each::

    ready     all operations worked once; ids of the processes that may be killed, and the duration
    told      an error: its type and text, its cause, and the time
    works     all operations worked again, on these hosts
    healed    replaced ranks, with HEAL: the seconds that each replacement has taken
    wrong     a traceback of an error that must not occur
    done      the session has ended, and the program is about to end

With HEAL, the maximum number of ranks to replace, killed ranks cause no error. Without an MPI launcher, HOSTS are
started as processes of this machine.
"""

import json
import logging
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import everyday  # noqa: E402
from simulated_hosts import StartedWorld  # noqa: E402

import synkhronos as synk  # noqa: E402
from synkhronos.errors import SynkhronosError  # noqa: E402
from synkhronos.program.program import PROGRAM  # noqa: E402

#: Time limit in seconds: without an error, the program ends by itself.
PATIENCE = 40.0


class FewerHosts(Exception):
    """A host was lost before the session began."""


class OverHosts(everyday.Program):
    """The everyday program, with ``per_host`` ranks on each available host, and at most ``heal`` replaced ranks."""

    def __init__(self, per_host, width, heal):
        super().__init__(0, width=width)
        self.per_host, self.heal = per_host, heal

    def fork(self):
        if synk.fork(self.per_host, timeout=60, pin=False, heal=self.heal) != self.n:
            raise FewerHosts

    def run(self):
        self.count()
        return super().run()

    def recover(self):
        self.count()
        super().recover()

    def count(self):
        """Update the hosts and the number of ranks."""
        self.names = [host.name for host in PROGRAM.all_hosts()] or [None]
        self.n = self.per_host * len(self.names)


class Replacements(logging.Handler):
    """Records the seconds that replacements of ranks have taken, from the log."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def emit(self, record):
        if "the rank was replaced after" in record.msg:
            self.seconds.append(record.args[1])


def main(record, per_host, width, heal, started=0):
    """Run the program."""
    with open(record, "a") as file:

        def say(what, **facts):
            file.write(json.dumps(dict(facts, what=what, at=time.monotonic())) + "\n")
            file.flush()

        try:
            play(
                say, os.path.join(os.path.dirname(record), "killed"), int(per_host), int(width), int(heal), int(started)
            )
        except BaseException:
            say("wrong", text=traceback.format_exc())
            raise


def play(say, killed, per_host, width, heal, started):
    """Repeat all operations until they fail or survive the sabotage, and once more."""
    if started:
        PROGRAM.meet(StartedWorld([f"h{i}" for i in range(started)]))
    replacements = Replacements()
    logging.getLogger("synkhronos").addHandler(replacements)
    program = OverHosts(per_host, width, heal)
    begin = time.monotonic()
    if program.run() != (None, None, None):
        raise everyday.Wrong("without sabotage")
    seconds = time.monotonic() - begin
    say("ready", seconds=seconds, **processes(program))
    until = time.monotonic() + PATIENCE
    error = None
    over = False  # whether everything was repeated after the sabotage
    while error is None and not over and time.monotonic() < until:
        over = os.path.exists(killed)
        try:
            operation, error, moment = program.run()
        except FewerHosts:
            synk.close()
            say("fewer")
            break
        except SynkhronosError as failed:  # outside the operations: hosts that do not answer
            operation, error, moment = "count", failed, time.monotonic()
    if error is not None:
        say(
            "told",
            operation=operation,
            type=type(error).__name__,
            text=str(error),
            cause=str(error.__cause__),
            when=moment,
        )
        forked = synk.is_forked()
        del error
        if forked:
            raise everyday.Wrong("the session is open after an error that ends it")
    for _ in range(2):  # the loss of a host may be detected only now, and end this session, too
        try:
            program.recover()
            failed = program.run()
        except (FewerHosts, SynkhronosError) as another:
            failed = (program.reached, another, None)
            synk.close()
        if failed == (None, None, None):
            break
        say("again", operation=failed[0], text=str(failed[1]))
    else:
        raise everyday.Wrong("it does not work again")
    say("healed", seconds=replacements.seconds)
    say("works", hosts=program.names, ranks=program.n)
    PROGRAM.shut_down()
    say("done")


def processes(program):
    """Return the process ids, as on their hosts, of the program, of processes that speak for a host, and of keepers."""
    here, *others = PROGRAM.all_hosts()
    return {
        "program": os.getpid(),
        "speakers": [host.processes[0] for host in (here, *others)],
        "keepers": [PROGRAM.keeper_pid, *(host.processes[1] for host in others)],
        "names": program.names,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
