"""Keys of actor or critic: users write `agent.net.actor_KEY`, the spec has `KEY` in the mapping `agent.net.actor`."""

import re
from collections.abc import Iterator
from typing import Literal

from slm_lab.lib.data import Document
from slm_lab.lib.errors import SpecError
from slm_lab.spec.reader import printable

Role = Literal["actor", "critic"]
ROLES: tuple[Role, Role] = ("actor", "critic")
NETS = ("net", "critic_net")
_PREFIXED = re.compile(r"^(agent\.(?:critic_)?net)\.(actor|critic)_")
_NESTED = re.compile(r"^(agent\.(?:critic_)?net)\.(actor|critic)\.")


def nested_path(path: str) -> str:
    """The dotted path of a key in the spec: `agent.net.actor.init_std`."""
    return _PREFIXED.sub(r"\1.\2.", path)


def written_path(path: str) -> str:
    """The dotted path of a key as users write it: `agent.net.actor_init_std`."""
    return _NESTED.sub(r"\1.\2_", path)


def gather_roles(spec: Document, where: str) -> Document:
    """A copy of a raw spec with the keys of each role in one mapping; `where` is the spec, for messages."""
    agent = spec.get("agent")
    if not isinstance(agent, dict):
        return spec
    nets = {key: _gather(agent[key], f"{where}: agent.{key}") for key in NETS if isinstance(agent.get(key), dict)}
    return {**spec, "agent": {**agent, **nets}}


def _gather(net: Document, where: str) -> Document:
    gathered = {key: value for key, value in net.items() if not key.startswith(("actor_", "critic_"))}
    for role in ROLES:
        given = gathered.setdefault(role, {})
        own = {key.removeprefix(f"{role}_"): value for key, value in net.items() if key.startswith(f"{role}_")}
        if isinstance(given, dict):  # anything else is refused as what it is
            for key in own.keys() & given.keys():
                raise SpecError(f"{where}.{role}_{printable(key)}: also given in agent.net.{role}; remove one of them")
            gathered[role] = given | own
    return gathered


def sections(net: Document) -> Iterator[tuple[str, Document]]:
    """The common keys of a raw net, then those of each role, each with the prefix that users write."""
    yield "", net
    for role in ROLES:
        if isinstance(net.get(role), dict):
            yield f"{role}_", net[role]
