"""Repositories with a fault, mended through tools and judged by tests.

    reset           what is wrong, and where
    read, search    what the files hold
    edit            lines become others
    run             the tests, as the agent's tree has them
    submit          the fix is graded on a pristine tree: reward 1 or 0, terminated

Tasks come from the procedural family (`family.py`), tiny packages with an injected fault whose
kinds, code style and test style are concept parameters, or from a folder of imported tasks. Calls
are written in one to three symbols, for small models, or in full, the same tools behind both
(`schema.py`); or an action is a block of shell commands. In compact form:

    reset           add             the function whose test fails
    step("f")       2add=lambda a,b:a-b          where it is
    step("e2*")     .               line 2: the operator becomes *
    step("t")       Fadd(1,3)==4    the tests fail here
    step("e2<")     !               nothing on line 2 that this could mean
    step("e2+")     .
    step("t")       P               the tests pass
    step("s")       P               resolved: reward 1

What the agent's tree does runs in a process of its own, in a sandbox; what it prints is made
reproducible (`normalise.py`). At most `calls` calls; running out of them truncates the episode,
unresolved. The agent's tree has no history. A sandbox that breaks raises MachineryError, which
fails the rollout and never scores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters, ascii_lowercase, digits, printable
from typing import Any, Literal

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from sao_gym.concepts import copied, filled, whole
from sao_gym.envs.repo_fix import family, functions, schema, tools
from sao_gym.envs.repo_fix.bench import Bench, Outcome, Tests, shared_bench
from sao_gym.envs.repo_fix.concept import OWNER, mix_of
from sao_gym.envs.repo_fix.normalise import normalise
from sao_gym.envs.repo_fix.schema import TOOLS, Call, Compact, Full
from sao_gym.envs.repo_fix.solver import Recorded, Solver
from sao_gym.envs.repo_fix.stored import mending, stored
from sao_gym.envs.repo_fix.symbols import SYMBOLS
from sao_gym.envs.repo_fix.terminal import Terminal
from sao_gym.envs.repo_fix.tools import ToolError
from sao_gym.errors import InputError
from sao_gym.repo.grade import EMPTY
from sao_gym.repo.record import record
from sao_gym.repo.task import RepoTask, Verdict
from sao_gym.tree import Entry, Patch, apply, between

_COMPACT_OUT = "".join(sorted(set(ascii_letters + digits + SYMBOLS + "()[]:,./!=- \n")))
_MOST_SHOWN = 20_000
_MOST_REASON = 40


class RepoFix(gym.Env[str, str]):
    """Repositories with one fault (see the module).

    Concept parameters, all optional:

    * `faults`: kinds of faults, a list or `{kind: weight}`; the kinds are `operator`, `comparison`,
      `wrong_variable`, `wrong_constant`, `off_by_one`, `swapped_arguments` and `missing_case`.
      Default: all of them alike.
    * `style`: how the code is written, `lambda`, `line`, `block` or `letters` (as `lambda`, with
      names that say nothing). Default `lambda`.
    * `tests`: how the tests are, `assert`, `table` or `loop`. Default `assert`.
    * `tools`: the schema, five letters (compact) or words for read, search, edit, run and submit.

    The first three are for the family only. A task depends on the seed and on them. `set_concept`
    renames the tools from the next call on; the open task stays, all else holds from the next one.
    """

    def __init__(
        self,
        *,
        form: Literal["compact", "full", "bash"] = "compact",
        calls: int = 12,
        seconds: float = 60.0,
        partial: bool = False,
        sandbox: Literal["auto", "docker", "bubblewrap", "process"] = "auto",
        boxes: Literal["warm", "fresh"] = "warm",
        tasks: str | None = None,
    ) -> None:
        """Set up the world; nothing is started before it is needed.

        Args:
            form: how calls are written.
            calls: most calls in an episode.
            seconds: most that one block of commands may take (`bash`).
            partial: a fix that mends some of the failing tests, and breaks none, earns their share.
            sandbox: where tests and commands run; `auto`: Docker if an engine answers, else
                bubblewrap, else plain processes. Environments of a process that name the same one
                share it.
            boxes: `fresh` grades every fix in a box of its own, and an episode's tests run in one
                of its own; `warm` does so for imported tasks alone, those of the family are forked
                in boxes that wait (a hundred times as quick, and as strict; see `repo/fast.py`).
            tasks: a folder of imported tasks. Default: the family.

        Raises:
            InputError: `calls` is not a whole number of at least 1, or `tasks` holds none, or they
                are to be mended in compact form.
        """
        self._form_name = form
        self._calls = whole(calls, "calls", owner=OWNER, low=1, high=10_000)
        self._seconds, self._partial, self._bench_of = seconds, partial, (sandbox, boxes)
        self._stored = None if tasks is None else stored(tasks)
        compact = form == "compact"
        if compact and self._stored is not None:
            raise InputError(f"{OWNER}: compact calls are for the family; use form full or bash")
        self._defaults: dict[str, Any] = {"tools": schema.COMPACT if compact else schema.FULL}
        if self._stored is None:
            kinds = list(functions.KINDS)
            self._defaults |= {"faults": kinds, "style": "lambda", "tests": "assert"}
        if compact:
            said = "".join(sorted(set(ascii_lowercase + SYMBOLS + "123456789")))
            self.action_space, shown = Text(3, charset=said), Text(1000, charset=_COMPACT_OUT)
        else:
            self.action_space = Text(1 << 20, charset=printable)
            shown = Text(2 * _MOST_SHOWN, charset=printable)
        self.observation_space = shown
        self._declared: dict[str, Any] | None = None
        self._task: RepoTask | None = None
        self._terminal: Terminal | None = None
        self._tests: Tests | None = None
        self._ended = True
        self._adopt({})

    # -- the episode -------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a task under `options["concept"]`.

        Raises:
            InputError: the concept has an unknown or an invalid parameter.
            MachineryError: the sandbox broke (form `bash`).
        """
        super().reset(seed=seed)
        self._adopt(options.get("concept") or {} if options else {})
        drawn = int(self.np_random.integers(1 << 32))
        if self._stored is None:
            task = family.make(drawn, mix_of(self._concept))
        else:
            task = self._stored[drawn % len(self._stored)]
        self.close()
        self._task, self._tree, self._left = task, task.tree, self._calls
        self._form = Compact(task) if self._form_name == "compact" else Full()
        self._seen = self._green = False
        if self._form_name == "bash":
            box = self._bench().box(task)
            self._terminal = Terminal(box, task, seconds=self._seconds)
        self._ended = False
        return self._opening(task), self._info(retry=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Call a tool, or run commands.

        Raises:
            ResetNeeded: the episode is over.
            MachineryError: the sandbox broke.
        """
        task = self._open()
        self._left -= 1
        retry, reward = False, 0.0
        patch: Patch | None = None
        verdict: Verdict | None = None
        try:
            call = self._parsed(action)
            if call.tool == "submit":
                patch = self._patch()
                verdict = self._bench().grade(task, patch)
                reward, shown = self._reward(task, verdict), self._judged(verdict)
            else:
                shown, retry = self._serve(call)
        except ToolError as error:
            shown, retry = "!" if self._compact else f"error: {error}\n", True
        terminated = verdict is not None
        truncated = not terminated and self._left == 0
        info = self._info(retry=retry and not (terminated or truncated))
        if terminated or truncated:
            info["record"] = record(task.id, patch or self._last_patch(), verdict)
            self.close()
        return shown, reward, terminated, truncated, info

    def close(self) -> None:
        """End the episode. What is warm belongs to the process and ends with it."""
        self._ended = True
        if self._tests is not None:
            self._tests.close()
            self._tests = None
        if self._terminal is not None:
            self._terminal.close()
            self._terminal = None

    # -- what else it offers -----------------------------------------------------------------

    @property
    def isolation(self) -> str:
        """One line for the user: where tests and commands run."""
        return self._bench().isolation

    def task(self, name: str) -> RepoTask | None:
        """The task of an id; None if there is none. For judging recorded fixes again."""
        if self._stored is None:
            return family.task_of(name)
        return next((task for task in self._stored if task.id == name), None)

    def reference_action(self) -> str:
        """The right next call: look, mend, run the tests, submit."""
        return self._solver().right()

    def valid_actions(self) -> tuple[str, ...]:
        """The right call and others that differ from it in the tool, the line or the symbol."""
        return self._solver().valid()

    def set_concept(self, params: Mapping[str, Any]) -> None:
        """From the next call on the tools are named so; the open task stays.

        Raises:
            InputError: an unknown or an invalid parameter; nothing has changed then.
        """
        self._adopt(params)

    def get_state(self) -> dict[str, Any] | None:
        """The episode so far, as plain data; None if it lives in a box (form `bash`)."""
        if self._form_name == "bash" or self._task is None:
            return None
        edited = between(self._task.tree, self._tree)
        return {
            "ended": self._ended,
            "written": {path: tuple(entry) for path, entry in edited.written.items()},
            "left": self._left,
            "seen": self._seen,
            "green": self._green,
            "concept": copied(self._concept),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue an episode after `reset` with the same seed and concept."""
        written = {path: Entry(*entry) for path, entry in state["written"].items()}
        self._tree = apply(self._open().tree, Patch(written, ()))
        self._left, self._seen, self._green = state["left"], state["seen"], state["green"]
        self._adopt(state["concept"])
        self._ended = state["ended"]

    # -- inside ------------------------------------------------------------------------------

    @property
    def _compact(self) -> bool:
        return self._form_name == "compact"

    def _opening(self, task: RepoTask) -> str:
        if self._compact:
            return f"{task.extra['name']}\n"
        files = "".join(f"{path}\n" for path in sorted(task.tree))
        read, search, edit, run, submit = self._names
        usage = f"One block of shell commands a turn; {submit} alone when done.\n"
        if self._form_name == "full":
            usage = (
                "One call of a tool a turn:\n"
                f"{read} PATH [LINE]\n{search} WORD\n{edit} PATH LINE[-LAST] NEW-LINES\n"
                f"{run} (the tests)\n{submit} (when done)\n"
            )
        return self._cut(f"{task.instruction}\n\nFiles:\n{files}\n{usage}")

    def _parsed(self, action: str) -> Call:
        if self._terminal is None:
            return self._form.parse(action, self._names)
        commands = action.strip()
        if not commands:
            raise ToolError("no commands")
        return Call("submit" if commands == self._names[-1] else "shell", text=action)

    def _serve(self, call: Call) -> tuple[str, bool]:
        """What the tool printed, and whether another try is in place."""
        match call.tool:
            case "shell":
                assert self._terminal is not None
                self._seen = call.text == mending(self._open())
                return self._cut(self._terminal.run(call.text)), False
            case "run":
                if self._tests is None:
                    self._tests = self._bench().tests(self._open())
                outcomes = self._tests.run(self._tree)
                self._green = bool(outcomes) and all(outcome.passed for outcome in outcomes)
                return self._ran(outcomes), not self._green
            case "edit":
                assert call.line is not None
                last = call.line if call.last is None else call.last
                self._tree = tools.edit(self._tree, call.path, call.line, last, call.text)
                self._green = False
                return ("." if self._compact else f"{call.path}:{call.line}:{call.text}\n"), False
            case "search":
                found = tools.search(self._tree, call.text)
                self._seen = True
            case _:
                found = tools.read(self._tree, call.path, call.line)
        return self._cut(self._form.shown(call, found)), False

    def _ran(self, outcomes: Sequence[Outcome]) -> str:
        failed = [outcome for outcome in outcomes if not outcome.passed]
        if self._compact:
            if not failed:
                return "P"
            why = "".join(c for c in normalise(failed[0].why) if c in _COMPACT_OUT)
            return f"F{why[:_MOST_REASON]}\n"
        lines = [f"FAILED {normalise(o.test)}: {normalise(o.why)}\n" for o in failed]
        lines.append(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed\n")
        return self._cut("".join(lines))

    def _judged(self, verdict: Verdict) -> str:
        if self._compact:
            return "P" if verdict.resolved else "F"
        return "resolved\n" if verdict.resolved else "not resolved\n"

    def _cut(self, text: str) -> str:
        return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}\n[cut]\n"

    def _reward(self, task: RepoTask, verdict: Verdict) -> float:
        if verdict.resolved or not self._partial:
            return float(verdict.resolved)
        passed = set(verdict.passed)
        if not passed.issuperset(task.pass_to_pass):
            return 0.0
        return len(passed.intersection(task.fail_to_pass)) / len(task.fail_to_pass)

    def _patch(self) -> Patch:
        if self._terminal is not None:
            return self._terminal.patch()
        return between(self._open().tree, self._tree)

    def _last_patch(self) -> Patch:
        """For the record of an episode that ran out of calls; nothing if it is too large."""
        try:
            return self._patch()
        except ToolError:
            return EMPTY

    def _open(self) -> RepoTask:
        if self._ended or self._task is None:
            raise ResetNeeded("no task is open: call reset() first")
        return self._task

    def _bench(self) -> Bench:
        return shared_bench(*self._bench_of)

    def _solver(self) -> Solver | Recorded:
        task = self._open()
        names = dict(zip(TOOLS, self._names, strict=True))
        if self._stored is not None or self._terminal is not None:
            shell = self._terminal is not None
            return Recorded(task=task, tree=self._tree, names=names, shell=shell, mended=self._seen)
        return Solver(
            task=task,
            tree=self._tree,
            names=names,
            form=self._form,
            seen=self._seen,
            green=self._green,
        )

    def _info(self, *, retry: bool) -> dict[str, Any]:
        return {"concept": copied(self._concept), "retry": retry}

    def _adopt(self, params: Mapping[str, Any]) -> None:
        if params == self._declared:
            return
        for name in ("faults", "style", "tests"):
            if name in params and name not in self._defaults:
                raise InputError(f"{OWNER}: concept parameter {name!r} has no effect with `tasks`")
        concept = filled(params, self._defaults, owner=OWNER)
        if self._stored is None:
            mix_of(concept)
        self._names = schema.words(concept["tools"], compact=self._compact, owner=OWNER)
        self._concept, self._declared = concept, copied(params)
