"""The processes behind pretend hosts, started by `pretend.Cluster`; `pretend` has a diagram of the network.

::

    test process
       | a pipe: when its other end is closed, all processes end
    supervisor     outside; kills the switch and removes the folder when the test process has ended
       |
    switch         the first process of the cluster: owns the bridge, and runs commands that agents request, like sshd
       |       |
    h0         h1  the first process of each host, which only waits; when it ends, the kernel kills the host's others

Only the standard library is used, without site packages, so that processes start quickly.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from multiprocessing.reduction import recvfds

# From the headers of Linux.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
PF_EXITING = 0x4

#: As under sshd, commands do not inherit the environment of their caller.
BARE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "SHELL": "/bin/sh",
}

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    """Raise `OSError` if a function of the C library has failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mount(source, target, kind, flags=0, data=None):
    """Mount a file system, or a folder at another path."""
    words = [word.encode() if word else None for word in (source, target, kind)]
    checked(libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None))


def ip(*lines):
    """Run lines as commands of `ip`."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines).encode(), check=True)


# -- outside -----------------------------------------------------------------------------------------------------------


def supervise(config):
    """Start the switch, and end it when the test process closes its pipe or dies."""
    signal.signal(signal.SIGTERM, lambda *_: stop() if os.getppid() != config["parent"] else None)
    signal.signal(signal.SIGCHLD, lambda *_: stop(1))  # the switch has failed
    switch = 0
    try:
        try:
            checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
            if os.getppid() != config["parent"]:
                return
            checked(libc.unshare(CLONE_NEWPID))  # affects only children
            switch = os.fork()
            if not switch:
                live(run_switch, config)
            os.close(1)  # only the switch writes to it
            # Processes forked by a test inherit the other end of this pipe; a signal arrives nevertheless.
            while os.read(0, 1024):
                pass
        finally:
            hear_nothing()
    finally:  # whichever came first, the other one can no longer enter here
        if switch:
            os.kill(switch, signal.SIGKILL)
            os.waitpid(switch, 0)  # returns when all processes of all hosts have ended
        shutil.rmtree(config["folder"], ignore_errors=True)


def hear_nothing():
    """Ignore SIGTERM and SIGCHLD from now on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def stop(status=0):
    """Exit, ignoring further signals."""
    hear_nothing()
    sys.exit(status)


def live(run, *arguments):
    """Run a function as the rest of this process; never return."""
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        run(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


# -- the switch --------------------------------------------------------------------------------------------------------


def run_switch(config):
    """Create the bridge, connect the hosts, report their process ids, and serve agents."""
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    leave_the_machine("switch")
    names = "".join(f"{address(i)} h{i}\n" for i in range(config["n"]))
    with open(os.path.join(config["folder"], "hosts"), "w") as stream:
        stream.write("127.0.0.1 localhost\n" + names)
    ip("link add bridge type bridge stp_state 0 mcast_snooping 0", "link set bridge up", "link set lo up")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.path.join(config["folder"], "socket"))
    listener.listen(64)
    hosts = {f"h{i}": plug_in(i, config) for i in range(config["n"])}
    os.write(1, json.dumps(list(hosts.values())).encode() + b"\n")
    os.close(1)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, hosts), daemon=True).start()


def address(host):
    """Return the address of a host."""
    return f"10.77.0.{host + 1}"


def leave_the_machine(name):
    """Move this process and its children to new namespaces of network, mounts, shared memory and host name."""
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET))
    mount(None, "/", None, MS_REC | MS_PRIVATE)  # later mounts are invisible to the machine
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    socket.sethostname(name)


def plug_in(i, config):
    """Start a host and connect it to the bridge; return the id of its first process."""
    there, go, ready = os.pipe(), os.pipe(), os.pipe()
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY)
    checked(libc.unshare(CLONE_NEWPID))
    pid = os.fork()
    if not pid:
        live(run_host, i, config, there[1], go[0], ready[1])
    checked(libc.setns(ours, CLONE_NEWPID))  # so that later children belong to the cluster again
    for fd in (ours, there[1], go[0], ready[1]):
        os.close(fd)
    expect(there[0], i)
    ip(f"link add sw{i} type veth peer name eth0 netns {pid}", f"link set sw{i} master bridge", f"link set sw{i} up")
    os.write(go[1], b"1")
    expect(ready[0], i)
    for fd in (there[0], go[1], ready[0]):
        os.close(fd)
    return pid


def expect(pipe, i):
    """Wait for a byte from a host."""
    if not os.read(pipe, 1):
        raise RuntimeError(f"h{i} does not come up")


def run_host(i, config, there, go, ready):
    """Run as the first process of a host: set the host up, and wait."""
    leave_the_machine(f"h{i}")
    mount_folders(i, config)
    os.write(there, b"1")
    if not os.read(go, 1):
        return
    ip("link set lo up", f"addr add {address(i)}/24 dev eth0", "link set eth0 up")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphaned processes
    os.write(ready, b"1")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 256)
    while True:
        signal.pause()


def mount_folders(i, config):
    """Mount a separate ``/dev/shm`` and ``/tmp`` for a host; its ``/tmp`` contains only the shared folders."""
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV)
    mount(os.path.join(config["folder"], "hosts"), "/etc/hosts", None, MS_BIND)
    new = os.path.join(config["folder"], f"tmp{i}")
    os.mkdir(new)
    mount("tmpfs", new, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for folder in config["shared"]:
        if folder.startswith("/tmp/") and os.path.isdir(folder):
            target = new + folder[len("/tmp") :]
            os.makedirs(target, exist_ok=True)
            mount(folder, target, None, MS_BIND | MS_REC)
    mount(new, "/tmp", None, MS_BIND | MS_REC)


# -- agents ------------------------------------------------------------------------------------------------------------


def serve(connection, hosts):
    """Run the command that an agent requests, with the agent's streams, and send its exit status."""
    with connection:
        streams = recvfds(connection, 3)
        name, command = json.loads(connection.makefile().readline())
        if is_on(hosts.get(name)):
            status = run_on(hosts[name], command, streams)
        else:
            os.write(streams[2], f"ssh: connect to host {name}: No route to host\n".encode())
            status = 255
        for fd in streams:
            os.close(fd)
        connection.sendall(str(status).encode())


def run_on(pid, command, streams):
    """Run a command on the host with this first process; return the exit status that a shell would report."""
    enter = ["nsenter", "-t", str(pid), "--net", "--uts", "--ipc", "--mount", "--pid", "--"]
    names = dict(zip(("stdin", "stdout", "stderr"), streams))
    status = subprocess.call([*enter, "sh", "-c", command], env=BARE_ENVIRONMENT, **names)
    if not is_on(pid):
        threading.Event().wait()  # a host without power sends nothing, and its streams stay open
    return status if status >= 0 else 128 - status


def is_on(pid):
    """Return whether a host's first process is alive; False for an unknown host."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and not int(fields[6]) & PF_EXITING  # flagged before all other threads have ended


if __name__ == "__main__":
    supervise(json.loads(sys.argv[1]))
