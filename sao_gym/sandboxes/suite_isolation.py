"""The cases of the suite about isolation: what a command in a box must not reach or take."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import textwrap
import time
from collections.abc import Callable

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, Box, BoxLimits
from sao_gym.sandboxes.suite_trial import Trial, Wrong, short
from sao_gym.tree import Entry

_MIB = 1 << 20


def network(trial: Trial) -> Wrong:
    """There is no network interface, and no service of this machine can be reached, neither by
    address nor by a socket without a name."""
    code = """
        import os, socket, sys
        for family, where in (
            (socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))),
            (socket.AF_UNIX, "\\0" + sys.argv[2]),
        ):
            try:
                s = socket.socket(family)
                s.settimeout(2)
                s.connect(where)
                print("reached", where)
            except OSError:
                pass
        print(*(name for _, name in socket.if_nameindex() if name != "lo"))
    """
    name = f"sao-gym-suite-{os.getpid()}-{time.monotonic_ns()}"
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        if os.path.isdir("/proc/self"):
            hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
            hidden.bind(f"\0{name}")
            hidden.listen()
        return _silent(trial, code, str(server.getsockname()[1]), name)


def host_files(trial: Trial) -> Wrong:
    """Files of the machine's users cannot be read, by no path."""
    code = """
        import os, sys
        for path in sys.argv[1:]:
            for way in (path, "/proc/1/root" + path, "/proc/self/root" + path):
                try:
                    print("read", way, open(way).read(10)) if not os.path.isdir(way) else (
                        print("listed", way) if os.listdir(way) else None)
                except OSError:
                    pass
    """
    with tempfile.NamedTemporaryFile("w", prefix="sao-gym-suite-") as file:
        file.write("a secret")
        file.flush()
        os.chmod(file.name, 0o644)  # not its permissions are tried
        home = os.path.expanduser("~")
        paths = [
            file.name,
            "/etc/shadow",
            *([home] if len(home) > 1 else []),
            "/var/run/docker.sock",
        ]
        return _silent(trial, code, *paths)


def host_processes(trial: Trial) -> Wrong:
    """Only the processes of the box are seen, and none can be signalled."""
    code = """
        import os, signal
        others = [n for n in os.listdir("/proc") if n.isdigit() and int(n) not in (1, os.getpid())]
        if len(others) > 2:
            print("sees", len(others), "processes")
        try:
            os.kill(os.getppid() or 1, signal.SIGKILL)
        except OSError:
            pass
    """
    return _silent(trial, code)


def capabilities(trial: Trial) -> Wrong:
    """A command is not root and has no capabilities."""
    code = """
        import os
        if os.geteuid() == 0:
            print("is root")
        held = ("CapEff", "CapPrm", "CapInh", "CapAmb")
        for line in open("/proc/self/status"):
            if line.startswith(held) and int(line.split()[1], 16):
                print(line.strip())
    """
    return _silent(trial, code)


def privileges(trial: Trial) -> Wrong:
    """A setuid program gives nothing: no new privileges, and none mounted in a new namespace."""
    code = """
        import os, subprocess
        status = open("/proc/self/status").read()
        if "NoNewPrivs:\\t1" not in status:
            print("new privileges may be had")
        for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd", "/usr/bin/sudo"):
            if os.path.exists(path) and os.stat(path).st_mode & 0o4000:
                me = os.getuid()
                child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL)
                try:
                    if os.stat("/proc/%d" % child.pid).st_uid == 0 != me:
                        uids = [l for l in open("/proc/%d/status" % child.pid) if "Uid" in l]
                        if uids and uids[0].split()[2] == "0":
                            print(path, "runs as root")
                except OSError:
                    pass
                child.kill()
                child.wait()
        if subprocess.run(["unshare", "-Ur", "mount", "-t", "tmpfs", "none", "/mnt"],
                          capture_output=True).returncode == 0:
            print("mounted something")
    """
    return _silent(trial, code)


def memory(trial: Trial) -> Wrong:
    """A command that needs more memory than it may have fails, and the box goes on."""
    code = "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('had it')"
    with trial.own(BoxLimits(memory=128 * _MIB)) as box:
        ran = trial.python(code, box=box)
        if ran.code == 0:
            return "400 MiB were had under a limit of 128"
        return _alive(box)


def processes(trial: Trial) -> Wrong:
    """A fork bomb reaches the limit and ends with its command; the box goes on."""
    count = """
        import os, time
        n = 0
        try:
            while n < 1000:
                if os.fork() == 0:
                    time.sleep(60)
                n += 1
        except OSError:
            pass
        print(n)
    """
    with trial.own(BoxLimits(processes=40)) as box:
        ran = trial.python(textwrap.dedent(count), box=box)
        if not ran.output.strip().isdigit() or not 20 <= int(ran.output) <= 40:
            return f"under a limit of 40 a command made: {short(ran.output)}"
        bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
        ran = trial.python(bomb, box=box, seconds=1)
        if ran.seconds > 5:
            return f"a fork bomb ended after {ran.seconds:.0f} s instead of 1"
        return _alive(box)


def disk(trial: Trial) -> Wrong:
    """What may be written anywhere together is limited; when it is full, the box goes on."""
    code = """
        import os, sys
        total = 0
        for folder in (".", "/tmp", "/dev/shm", "/dev", "/var/tmp", "/run", "/"):
            try:
                with open(os.path.join(folder, "fill"), "wb", 0) as file:
                    for _ in range(200):
                        total += file.write(bytes(1 << 20))
            except OSError:
                pass
        print(total)
    """
    with trial.own(BoxLimits(disk=32 * _MIB)) as box:
        ran = trial.python(textwrap.dedent(code), box=box)
        if not ran.output.strip().isdigit() or int(ran.output) > 33 * _MIB:
            return f"under a limit of 32 MiB a command wrote: {short(ran.output)} ({ran.code})"
        try:
            box.put({"more": Entry("file", bytes(33 * _MIB))})
        except MachineryError as error:
            if error.kind != "disk":
                return f"a full disk was told as {error.kind}: {error}"
        else:
            return "33 MiB were put under a limit of 32"
        return _alive(box)


def read_only(trial: Trial) -> Wrong:
    """Nothing but WORK, /tmp and /dev/shm can be written."""
    code = """
        import os, sys
        skip = {"/proc", "/sys", "/tmp", "/dev/shm", sys.argv[1]}
        for root, folders, _ in os.walk("/"):
            folders[:] = [f for f in folders if os.path.join(root, f) not in skip]
            try:
                with open(os.path.join(root, ".probe"), "w"):
                    print("wrote into", root)
                    break
            except OSError:
                pass
        for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/self/../1/comm"):
            try:
                os.close(os.open(path, os.O_WRONLY))
                print("may write", path)
            except OSError:
                pass
    """
    return _silent(trial, code, WORK, seconds=60)


def supervisor(trial: Trial) -> Wrong:
    """A command cannot kill, stop or look into what supervises it."""
    code = """
        import os, signal
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT):
            for pid in (1, os.getppid() or 1):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        paths = ["/proc/1/mem", "/proc/1/environ", *("/proc/1/fd/%d" % n for n in range(12))]
        for path in paths:
            for mode in (os.O_RDONLY, os.O_WRONLY):
                try:
                    os.close(os.open(path, mode | os.O_NONBLOCK))
                    print("opened", path)
                except OSError:
                    pass
        os.kill(-1, signal.SIGKILL)
    """
    with trial.own() as box:
        ran = trial.python(textwrap.dedent(code), box=box)
        if b"opened" in ran.output:
            return short(ran.output)
        return _alive(box)


def _alive(box: Box) -> Wrong:
    ran = box.run(["sh", "-c", "echo alive"], seconds=10)
    return None if ran.output == b"alive\n" else f"the box is broken afterwards: {ran}"


def _silent(trial: Trial, code: str, *arguments: str, seconds: float = 20) -> Wrong:
    """Run a probe that prints only what is wrong."""
    ran = trial.python(textwrap.dedent(code), *arguments, seconds=seconds)
    if ran.output.strip() or ran.code:
        return short(ran.output) or f"code {ran.code}"
    return None


ISOLATION_CASES: dict[str, Callable[[Trial], Wrong]] = {
    "network": network,
    "host_files": host_files,
    "host_processes": host_processes,
    "capabilities": capabilities,
    "privileges": privileges,
    "memory": memory,
    "processes": processes,
    "disk": disk,
    "read_only": read_only,
    "supervisor": supervisor,
}
