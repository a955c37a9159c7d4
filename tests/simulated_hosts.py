"""Hosts that are processes of this machine, without MPI; ``python -m simulated_hosts`` is the process of such a host."""

import json
import os
import subprocess
import sys

from synkhronos.cluster.world import World
from synkhronos.sync.rendezvous import Rendezvous

#: Environment variable with the rendezvous address, the number of the process, and the number of hosts.
MEETING = "SYNK_TEST_MEETING"


class WithoutMpi(World):
    """Processes without MPI and its launcher."""

    def refuse(self, reason):
        """Do nothing, because the other processes have not started yet."""

    def courier(self):
        return None

    def end(self, together):
        pass

    def abort(self):
        """Do nothing, because the other processes end on their own."""

    def remedy(self):
        return ""

    def launcher(self):
        return 0


class StartedWorld(WithoutMpi):
    """The hosts' processes, as seen by the program, which starts them.

    Parameters
    ----------
    names : sequence of str
        Names of the hosts.
    modules : sequence of str
        Imported before ranks are forked.
    """

    def __init__(self, names, modules=()):
        self.process, self.n, self.names, self.modules = 0, len(names), names, modules
        self.processes = []

    def send_address(self, meeting):
        for process in range(1, self.n):
            variables = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), SYNK_HOST_NAME=self.names[process])
            variables[MEETING] = json.dumps([meeting.endpoints, meeting.token.hex(), process, self.n])
            command = [sys.executable, "-m", "simulated_hosts"]
            self.processes.append(
                subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True)
            )
        return self.n - 1

    def end(self, together):
        for process in self.processes:
            process.wait()

    def abort(self):
        self.end(False)


class ToldWorld(WithoutMpi):
    """The hosts' processes, as seen by one that a `StartedWorld` has started."""

    def __init__(self, told):
        endpoints, token, self.process, self.n = json.loads(told)
        self._meeting = Rendezvous(endpoints, bytes.fromhex(token))

    def recv_address(self):
        return self._meeting


if __name__ == "__main__":
    from synkhronos.program.hosts import serve

    serve(ToldWorld(os.environ.pop(MEETING)))
