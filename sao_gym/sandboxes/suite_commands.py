"""The cases of the suite about commands: what ends them, what they are given, what comes back."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace

from sao_gym.errors import MachineryError
from sao_gym.sandbox import WORK, Box, BoxLimits
from sao_gym.sandboxes.suite_trial import Trial, Wrong, short

_MINE = ("PATH", "HOME", "LANG", "PWD", "OLDPWD", "HOSTNAME", "SHLVL", "_", "TERM", "TMPDIR")
_VERSION = {"python3": ["--version"], "git": ["--version"], "sh": ["-c", "true"]}

# A child in a session of its own, and its child in another, each of which goes on counting.
_BEATS = """
import os, sys, time
def beat(name):
    os.setsid()
    while True:
        with open(name, "a") as file:
            file.write(".")
        time.sleep(0.02)
if os.fork() == 0:
    if os.fork() == 0:
        beat("grandchild")
    beat("child")
time.sleep(0.5)
"""


def time_limit(trial: Trial) -> Wrong:
    """The time limit ends the whole tree, processes with sessions of their own too."""
    with trial.own() as box:
        ran = trial.python(_BEATS + "time.sleep(60)", box=box, seconds=1.5)
        if not ran.timed_out or ran.code != 124 or ran.seconds > 6:
            return f"ended with code {ran.code} after {ran.seconds:.1f} s"
        return _still(box)


def background(trial: Trial) -> Wrong:
    """What a command leaves running ends with it."""
    with trial.own() as box:
        ran = trial.python(_BEATS + "time.sleep(0.5)", box=box)
        if ran.code != 0 or ran.seconds > 6:
            return f"ended with code {ran.code} after {ran.seconds:.1f} s"
        return _still(box)


def ignored_signals(trial: Trial) -> Wrong:
    """A command that ignores signals ends in time all the same."""
    code = """
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
    """
    ran = trial.python(textwrap.dedent(code), seconds=1)
    return None if ran.timed_out and ran.seconds < 6 else f"code {ran.code}, {ran.seconds:.1f} s"


def output(trial: Trial) -> Wrong:
    """Of a gigabyte of output the limit is kept, with a marker, and quickly."""
    with trial.own(replace(BoxLimits(), output=100_000)) as box:
        began = time.monotonic()
        code = "import os\nos.write(1, b'first')\nx = bytes(1 << 20)\nfor i in range(1024): "
        code += "os.write(1, x)\nos.write(1, b'last')"
        ran = trial.python(code, box=box, seconds=60)
        if ran.code != 0 or not ran.cut or not 50_000 < len(ran.output) < 100_200:
            return f"code {ran.code}, cut {ran.cut}, {len(ran.output)} bytes kept of 100,000"
        if not ran.output.startswith(b"first") or not ran.output.endswith(b"last"):
            return "the beginning or the end is not what was kept"
        if b"bytes of output dropped" not in ran.output:
            return "no marker"
        seconds = time.monotonic() - began
        return f"took {seconds:.0f} s" if seconds > 30 else None


def output_order(trial: Trial) -> Wrong:
    """Standard output and standard error come in the order in which they were written."""
    box = trial.box()
    ran = box.run(["sh", "-c", "for i in 1 2 3; do echo o$i; echo e$i >&2; done"], seconds=10)
    return None if ran.output == b"o1\ne1\no2\ne2\no3\ne3\n" else short(ran.output)


def codes(trial: Trial) -> Wrong:
    """Exit codes: the command's own, 128 + signal, 127 for an unknown command; input is given."""
    box = trial.box()
    got = [
        box.run(["sh", "-c", "exit 7"], seconds=10).code,
        box.run(["sh", "-c", "kill -SEGV $$"], seconds=10).code,
        box.run(["no-such-command"], seconds=10).code,
    ]
    if got != [7, 139, 127]:
        return f"{got} instead of [7, 139, 127]"
    back = box.run(["cat"], seconds=10, stdin=b"\0in\xff").output
    return None if back == b"\0in\xff" else f"of the input came {short(back)}"


def environment(trial: Trial) -> Wrong:
    """Variables of the machine are not passed on; those asked for are."""
    ran = trial.python("import json, os; print(json.dumps(dict(os.environ)))")
    inside = json.loads(ran.output)
    leaked = sorted(name for name in inside if name in os.environ and name not in _MINE)
    leaked = [name for name in leaked if inside[name] == os.environ[name] and inside[name] != "1"]
    if leaked:
        return f"passed on: {', '.join(leaked)}"
    told = trial.box().run(["sh", "-c", "echo $ASKED"], seconds=10, environment={"ASKED": "a b"})
    return None if told.output == b"a b\n" else "a variable that was asked for is missing"


def state(trial: Trial) -> Wrong:
    """What one command writes the next one finds; another box does not."""
    with trial.own() as box, trial.own() as other:
        box.run(["sh", "-c", "echo kept >file; mkdir sub"], seconds=10)
        if box.run(["cat", "../file"], seconds=10, cwd=f"{WORK}/sub").output != b"kept\n":
            return "a file is gone"
        return "another box sees it" if other.get() else None


def held(trial: Trial) -> Wrong:
    """A command can be held: spoken with through its pipes, alone, and missed when it ends."""
    code = "import sys\nfor line in sys.stdin.buffer:\n    print(line[::-1], flush=True)\n    "
    code += "print('aside', file=sys.stderr, flush=True)\n    if line == b'end\\n': break"
    with trial.own() as box:
        command = box.hold(["python3", "-c", code])
        for said, back in ((b"ab\n", b"b'\\nba'\n"), (b"end\n", b"b'\\ndne'\n")):
            command.send(said, time.monotonic() + 20)
            if (got := command.receive(len(back), time.monotonic() + 20)) != back:
                return f"{short(got)} instead of {short(back)}"
            if said == b"ab\n" and not _refused(box):
                return "another command was served beside it"
        try:
            command.receive(1, time.monotonic() + 20)
        except MachineryError as error:
            return None if error.kind == "box" else f"its end came as {error.kind}: {error}"
        return "it spoke after its end"


def _refused(box: Box) -> bool:
    try:
        box.run(["true"], seconds=1)
    except MachineryError:
        return True
    return False


def tools(trial: Trial) -> Wrong:
    """Python 3, git and a shell are there."""
    wanted = ("python3", "git", "sh")
    box = trial.box()
    missing = [n for n in wanted if box.run([n, *_VERSION[n]], seconds=20).code]
    return f"missing: {', '.join(missing)}" if missing else None


def _still(box: Box) -> Wrong:
    """Whether what `_BEATS` started is gone."""
    first = box.get()
    if not {"child", "grandchild"} <= first.keys():
        return "the processes did not start"
    time.sleep(0.3)
    return None if box.get() == first else "a process lives on"


COMMAND_CASES: dict[str, Callable[[Trial], Wrong]] = {
    "time_limit": time_limit,
    "background": background,
    "ignored_signals": ignored_signals,
    "output": output,
    "output_order": output_order,
    "codes": codes,
    "environment": environment,
    "state": state,
    "held": held,
    "tools": tools,
}
