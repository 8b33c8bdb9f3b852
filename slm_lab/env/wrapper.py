"""Apply the wrappers that a spec names; and a wrapper that makes BipedalWalker repeatable."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import wrappers as gymnasium_wrappers

from slm_lab.env.gym_types import GymEnv, Info
from slm_lab.lib.errors import EnvError, EnvHangError, nearest
from slm_lab.lib.runtime import import_by_name
from slm_lab.spec.schema import WrapperSpec


def apply_wrappers(env: GymEnv, wrappers: tuple[WrapperSpec, ...]) -> GymEnv:
    """Wrap an env; the first wrapper is the innermost."""
    for spec in wrappers:
        kind = find_wrapper(spec.name)
        known = inspect.signature(kind).parameters
        for key in spec.kwargs:
            if key not in known and not any(one.kind == one.VAR_KEYWORD for one in known.values()):
                raise EnvError(f"env.wrappers: {spec.name} has no option '{key}'{nearest(key, list(known)[1:])}")
        try:
            env = kind(env, **spec.kwargs)
        except EnvHangError:
            raise
        except Exception as error:  # the wrapper's own code: anything can come
            reason = " ".join(str(error).split())
            raise EnvError(
                f"env.wrappers: {spec.name} cannot be made with {spec.kwargs}: {type(error).__name__}: {reason}"
            ) from error
    return env


def find_wrapper(name: str) -> type[Any]:
    """A wrapper of gymnasium by the name of its class, or any other by `package.module:Class`."""
    module, sign, class_name = name.partition(":")
    if not sign:
        known = _list_wrappers(vars(gymnasium_wrappers))
        # the lab resets ended envs itself
        known.pop("Autoreset")
        if name not in known:
            raise EnvError(
                f"env.wrappers: gymnasium has no wrapper '{name}'{nearest(name, known)} (one of your own needs its "
                f"module: my_module:{name})"
            )
        return known[name]
    if module == "__main__":
        raise EnvError(
            f"env.wrappers: '{name}' is in your script, which no other process can import; move it to a module"
        )
    try:
        import_by_name(module)
    except ImportError as error:
        raise EnvError(f"env.wrappers: module '{module}' of '{name}' cannot be imported: {error}") from None
    known = _list_wrappers(vars(sys.modules[module]))
    if class_name not in known:
        raise EnvError(
            f"env.wrappers: module '{module}' has no wrapper '{class_name}'{nearest(class_name, known)}; a wrapper is "
            "a class derived from gymnasium.Wrapper"
        )
    return known[class_name]


def _list_wrappers(names: Mapping[str, Any]) -> dict[str, type[Any]]:
    return {name: one for name, one in names.items() if isinstance(one, type) and issubclass(one, gym.Wrapper)}


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives BipedalWalker a new world in each episode, as in LunarLander.

    Its own reset empties and refills the same world. Box2D then finds the same contacts in another order and adds them
    up with different rounding, so an episode would depend on earlier ones and not only on its seed.
    """

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode."""
        base: Any = self.unwrapped
        base._destroy()
        base.world = type(base.world)()
        return self.env.reset(seed=seed, options=options)
