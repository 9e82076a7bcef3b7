"""The agents for repositories: calls of a few symbols, commands in fenced blocks, windows."""

from __future__ import annotations

import pickle

import pytest

from sao_gym.agents.repo import Repo
from sao_gym.agents.shell import SYSTEM, Shell
from sao_gym.demonstration import demonstrate
from sao_gym.envs.repo_fix import RepoFix, bench
from sao_gym.errors import InputError
from sao_gym.rollout import reply
from sao_gym.testing import check_agent
from sao_gym.tokenizer import character_tokenizer, encode
from sao_gym.types import Concept, Task

SYMBOLS = "".join(map(chr, range(32, 127))) + "\n\ue000"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWRITES = TEMPLATE.replace("{{ m.content }}", "{{ loop.length }}{{ m.content }}")


@pytest.fixture(scope="module")
def plain():
    return character_tokenizer(SYMBOLS)


def chat_tokenizer(template=TEMPLATE):
    tokenizer = character_tokenizer(SYMBOLS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = [lambda: character_tokenizer(SYMBOLS), chat_tokenizer]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_contract_holds(tokenizer):
    for limit in (3, 64):
        check_agent(lambda t, n=limit: Repo(t, max_new_tokens=n), tokenizer())
    check_agent(Shell, tokenizer())
    check_agent(lambda t: Shell(t, window=4, system=""), tokenizer(), texts=["a", "a\nb c", "x y"])


def test_a_call_of_three_symbols_needs_no_stop_token(plain):
    agent = Repo(plain)
    assert agent.max_new_tokens == 3
    assert agent.spell("e2+") == encode(plain, "e2+")
    assert agent.spell("t") == (*encode(plain, "t"), plain.eos_token_id)
    assert agent.act(agent.spell("r2")) == "r2"
    assert agent.begin("add\n") == encode(plain, "add\n")
    assert agent.observe("2add=lambda a,b:a-b\n") == encode(plain, "2add=lambda a,b:a-b\n")
    with pytest.raises(InputError, match="is 4 tokens, more than max_new_tokens 3"):
        agent.spell("e2++")


def test_full_calls_end_with_a_line(plain):
    agent = Repo(plain, max_new_tokens=80, stop="\n", system="Mend it.\n")
    call = "edit m.py 2 add=lambda a,b:a+b"
    assert agent.spell(call) == encode(plain, call + "\n")
    assert agent.act(encode(plain, call + "\n")) == call
    assert agent.begin("x") == encode(plain, "Mend it.\nx")


@pytest.mark.parametrize("make", [Repo, Shell])
def test_a_template_that_rewrites_history_is_refused(make):
    with pytest.raises(InputError, match="use a template that only appends"):
        make(chat_tokenizer(REWRITES))


@pytest.mark.parametrize("make", [Repo, Shell])
def test_agents_can_be_sent_to_another_process(make, plain):
    agent = make(plain)
    copy = pickle.loads(pickle.dumps(agent))
    assert copy.begin("m.py") == agent.begin("m.py")


# --- the shell ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "commands"),
    [
        ("```bash\nls\n```", "ls"),
        ("I look.\n```bash\nls\ncat a\n```\nDone.", "ls\ncat a"),
        ("```\nls\n```", "ls"),
        ("```sh\nls\n```\nor rather\n```bash\npwd\n```", "pwd"),
        ("```bash\n\nls\n\n```", "\nls\n"),
        ("```bash\n```", ""),
        ("ls", ""),
        ("```bash\nls", ""),  # cut off: half a command is not run
        ("```python\nprint(1)\n```", ""),
        ("text ```bash\nls\n```", ""),
        ("```bash\necho '```'\n```", "echo '```'"),
    ],
)
def test_the_last_complete_block_is_run(plain, said, commands):
    assert Shell(plain).act(encode(plain, said)) == commands


def test_a_command_is_spelled_in_a_block(plain):
    agent = Shell(plain)
    assert agent.act(agent.spell("ls -l\npwd")) == "ls -l\npwd"
    with pytest.raises(InputError, match="cannot stand in a fenced block"):
        agent.spell("cat <<E\n```\nE")
    with pytest.raises(InputError, match="more than max_new_tokens 10"):
        Shell(plain, max_new_tokens=10).spell("ls -l")


def test_instructions_open_the_episode(plain):
    assert Shell(plain).begin("task") == encode(plain, SYSTEM + "task")
    assert Shell(plain, system="").begin("task") == encode(plain, "task")


def test_a_long_observation_is_shown_through_a_window(plain):
    lines = "".join(f"line {i}\n" for i in range(10))  # 70 symbols
    agent = Shell(plain, window=52)
    # two lines of 7 symbols at each end and the marker of 20; three would make 62
    assert agent.windowed(lines) == "line 0\nline 1\n[6 lines not shown]\nline 8\nline 9\n"
    assert agent.observe(lines) == encode(plain, agent.windowed(lines))
    assert Shell(plain, window=70).windowed(lines) == lines
    assert agent.begin(lines)[-70:] == encode(plain, lines)  # the task is never cut


def test_a_long_line_is_cut_inside(plain):
    agent = Shell(plain, window=30)
    assert agent.windowed("x" * 20 + "y" * 20) == "xxx\n[34 symbols not shown]\nyyy"
    with pytest.raises(InputError, match="window must be at least 1"):
        Shell(plain, window=0)


def test_no_window_is_wider_than_it_says(plain):
    text = "".join(f"{'z' * (i % 7)}\n" for i in range(60))
    for window in range(24, 200):
        assert len(Shell(plain, window=window).observe(text)) <= window


def test_what_was_read_is_never_shortened():
    """Each turn only appends: the tokens of the first window stay as they were."""
    tokenizer = chat_tokenizer()
    agent = Shell(tokenizer, window=40)
    first, second = "".join(f"{i}\n" for i in range(100)), "short"
    context = list(agent.begin("task"))
    for observation in (first, second):
        context += agent.spell("ls")
        kept = list(context)
        context += reply(agent, agent.spell("ls"), observation)
        assert context[: len(kept)] == kept
    assert "[" in tokenizer.decode(context)
    assert tokenizer.decode(context).count("lines not shown") == 1


def test_agents_mend_through_their_environments(plain):
    concept = Concept(id="A", params={})
    for form, agent in (("compact", Repo(plain)), ("full", Repo(plain, max_new_tokens=200))):
        env = RepoFix(form=form, sandbox="process")
        done = demonstrate(env, agent, concept, Task(index=0, seed=4))
        assert sum(turn.reward for turn in done.turns) == 1.0
    env = RepoFix(form="bash", sandbox="process")
    done = demonstrate(env, Shell(plain), concept, Task(index=0, seed=4))
    assert [turn.reward for turn in done.turns] == [0.0, 1.0]
    bench.shared_bench("process").close()
