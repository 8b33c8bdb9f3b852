"""The card of a model repo: what the agent is, what it scores, and the lines to use and to check it."""

import math
import shlex
from collections.abc import Sequence

from slm_lab.lib.data import Document
from slm_lab.lib.io import dump_yaml
from slm_lab.lib.secret import redact
from slm_lab.results.run import Run, look_up
from slm_lab.share.card import describe_origin, describe_score, describe_sessions, list_tags, to_plain
from slm_lab.share.manifest import Summary
from slm_lab.share.model import AGENT, CURVE, SPEC, VIDEO
from slm_lab.share.settings import HUB_PREFIX

# what a reader pins: enough digits that nobody meets them by chance
PIN_DIGITS = 16


def write_model_card(
    run: Run, summary: Summary, repo: str, paths: Sequence[str], contract: Document, sha256: str, imports: Sequence[str]
) -> str:
    """The card as Markdown, of the files at the top of a repo."""
    parts = [
        _front_matter(run, contract),
        f"# {to_plain(run.label)} on {to_plain(run.env_name)}",
        _lead(run),
        describe_score(run, summary),
        _pictures(paths),
        _usage(run, repo, sha256, contract),
        _checks(run, repo, imports),
        f"## Sessions\n\n{describe_sessions(run)}",
        describe_origin(run),
        _files(paths, sha256),
    ]
    return redact("\n\n".join(part for part in parts if part) + "\n")


def _lead(run: Run) -> str:
    return (
        f"A {to_plain(run.label)} agent for {to_plain(run.env_name)}, trained with SLM-Lab. The file `{AGENT}` holds "
        "the net, the statistics of its observations and its spec. It needs neither the env nor the run."
    )


def _front_matter(run: Run, contract: Document) -> str:
    data: Document = {
        "library_name": "slm-lab",
        "pipeline_tag": "reinforcement-learning",
        "tags": [*list_tags(run), run.env_name],
    }
    metrics = list_metrics(contract)
    if metrics:
        # the hub's own table of results, with the keys it reads
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": run.env_name, "type": run.env_name},
            "metrics": metrics,
        }
        data["model-index"] = [{"name": run.label, "results": [result]}]
    return f"---\n{dump_yaml(data)}---"


def list_metrics(contract: Document) -> list[Document]:
    """The score of the agent, and the mean over all sessions of its run with its interval, for the hub's table."""
    score = contract.get("score") or {}
    metrics: list[Document] = []
    if (value := score.get("session")) is not None:
        metrics.append({"type": "mean_reward", "value": round(value, 2), "name": "mean_reward", "verified": False})
    count = score.get("num_session")
    if (value := score.get("mean")) is not None and count and count > 1:
        name = f"mean_reward of {count} sessions"
        if score.get("low") is not None:
            name += f", 95 % interval [{score['low']:.2f}, {score['high']:.2f}]"
        metrics.append({"type": "mean_reward_of_sessions", "value": round(value, 2), "name": name, "verified": False})
    return metrics


def _pictures(paths: Sequence[str]) -> str:
    lines = []
    if VIDEO in paths:
        lines.append(f"[Replay of an episode]({VIDEO})")
    if CURVE in paths:
        lines.append(f"![Learning curve: mean and spread of the sessions]({CURVE})")
    return "\n\n".join(lines)


def _usage(run: Run, repo: str, sha256: str, contract: Document) -> str:
    source = f"{HUB_PREFIX}{repo}@{sha256[:PIN_DIGITS]}"
    # a mask belongs to every call, and only the env knows it
    mask = ", mask=info['action_mask']" if contract.get("action_mask") else ""
    env = run.env_name
    setup = ["import gymnasium as gym", "import slm_lab", ""]
    # an env of a module of somebody else is not written into code that people copy
    if all(char.isalnum() or char in "/-_." for char in env) and not env.startswith("playground/"):
        body = [
            f'agent = slm_lab.load_agent("{source}")',
            f'env = gym.make("{env}")',
            "obs, info = env.reset(seed=0)",
            f"obs, reward, terminated, truncated, info = env.step(agent.act(obs{mask}))",
        ]
        if env.startswith("ALE/"):
            setup.insert(0, "import ale_py")
    else:
        setup, body = setup[1:], [f'agent = slm_lab.load_agent("{source}")', f"action = agent.act(obs{mask})"]
    code = "\n".join([*setup, *body])
    return (
        f"## Use it\n\nWith SLM-Lab and its extra `ml` installed:\n\n```python\n{code}\n```\n\n"
        f"`load_agent` downloads `{AGENT}`, compares it with its SHA-256 and runs none of it. The digits after `@` pin "
        "this agent: another one in its place is refused."
    )


def _checks(run: Run, repo: str, imports: Sequence[str]) -> str:
    folder = run.path.resolve().name
    place = f"data/{folder}"
    extra = [word for module in imports for word in ("--import", module)]
    lines = [
        (shlex.join(["slm-lab", "pull", folder, "--from", f"{HUB_PREFIX}{repo}"]), "fetch the run it is from"),
        (shlex.join(["slm-lab", "verify", place, "--segment", str(_segment(run)), *extra]), "train its start again"),
        (shlex.join(["slm-lab", "run", f"enjoy@{place}", *extra]), "watch it"),
        (shlex.join(["slm-lab", "report", place]), "all curves and metrics as a page"),
    ]
    body = "\n".join(f"{command}   # {remark}" for command, remark in lines)
    return (
        f"## Check it\n\n```bash\n{body}\n```\n\n`verify` trains the first frames again from the seed and compares the "
        f"tables bit for bit. [{SPEC}]({SPEC}) is the whole experiment: `slm-lab run {SPEC}` trains it again."
    )


def _segment(run: Run) -> int:
    """Frames to train again: a twentieth, but at least two rows of the tables."""
    row = look_up(run.spec, "meta", "log_frequency")
    return min(run.frame, max(math.ceil(run.frame / 20), 2 * row if isinstance(row, int) else 1))


def _files(paths: Sequence[str], sha256: str) -> str:
    names = ", ".join(f"`{path}`" for path in paths)
    return (
        f"`model.json` has the SHA-256 of {names}; that of `{AGENT}` is `{sha256}`. The run with its tables, models "
        "and logs is below `data/`."
    )
