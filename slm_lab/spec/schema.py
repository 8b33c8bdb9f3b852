"""The spec: what a run is, validated whole before anything starts."""

from functools import cache, reduce
from operator import or_
from types import ModuleType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BeforeValidator, ConfigDict, Field, create_model, model_validator

from slm_lab.lib.data import Document
from slm_lab.spec import algorithm as algorithms
from slm_lab.spec import memory as memories
from slm_lab.spec import net as nets
from slm_lab.spec import offline, pqn, td3
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.memory import MemorySpec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.roles import NETS, ROLES
from slm_lab.spec.types import (
    Bool,
    Float,
    Model,
    NonNegativeInt,
    OptionOrSchedule,
    PositiveFloat,
    PositiveInt,
    ScheduleSpec,
    Str,
)

M = TypeVar("M", bound=Model)


def _built_in(base: type[M], tag: str, *modules: ModuleType) -> dict[str, type[M]]:
    """The models of some modules that a spec can name, in their order."""
    named = [one for module in modules for one in vars(module).values()]
    kinds = [one for one in named if isinstance(one, type) and issubclass(one, base)]
    return {name: kind for kind in kinds for name in get_args(kind.model_fields[tag].annotation)}


# What a spec may name; `register_*` adds a user's own.
ALGORITHM_SPECS = _built_in(AlgorithmSpec, "name", algorithms, td3, pqn, offline)
MEMORY_SPECS = _built_in(MemorySpec, "name", memories)
NET_SPECS = _built_in(NetSpec, "type", nets)


class WrapperSpec(Model):
    """A wrapper around the env; its name alone may stand for it."""

    name: Str = Field(min_length=1, description="Class in gymnasium.wrappers, or `package.module:Class` for your own.")
    kwargs: Document = Field({}, description="Options passed to its constructor, after the env.")


def _read_wrapper(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class EnvSpec(Model):
    """The environment and how long to train in it."""

    name: Str = Field(min_length=1, description="Registered id, or `package.module:EnvId` for your own env.")
    num_envs: PositiveInt = Field(1, description="Copies of the env stepped together.")
    backend: Literal["auto", "gymnasium", "ale", "array", "envpool"] = Field(
        "auto",
        description="What steps the envs: ale is the C++ env of Atari games; auto uses it for ALE/ names. array steps "
        "all CartPoles at once; auto uses it if measured faster. envpool is faster for some MuJoCo "
        "and classic envs, but a stopped run does not resume exactly.",
    )
    num_workers: NonNegativeInt | None = Field(
        None,
        description="Processes that step the envs; 0 steps them in the session; null: the faster way, measured at the "
        "start.",
    )
    max_t: PositiveInt | None = Field(None, description="Time limit of an episode; null: the env's own.")
    step_timeout: Annotated[Float, Field(ge=0)] = Field(
        300.0,
        description="Time limit in seconds for a step of an env, after which the session ends; 0: none. It does not "
        "affect results.",
    )
    max_frame: PositiveInt = Field(description="Env steps to train for, over all copies.")
    normalize_obs: Bool = Field(False, description="Shift and scale observations by their running mean and std.")
    normalize_reward: Bool = Field(False, description="Scale rewards by the running std of the discounted return.")
    clip_obs: PositiveFloat | None = Field(
        None,
        description="Largest absolute observation after normalisation; default 10 with normalize_obs, otherwise null.",
    )
    clip_reward: PositiveFloat | tuple[Float, Float] | None = Field(
        None,
        description="Largest absolute reward, or [low, high], for learning; default 10 with normalize_reward, "
        "otherwise 1 for ALE/ games.",
    )
    reward_scale: Float = Field(1.0, description="Factor on the reward for learning; scores stay raw.")
    kwargs: dict[str, OptionOrSchedule] = Field(
        {},
        description="Options passed to the env's constructor. A [schedule](#schedule) changes one over the run: an "
        "episode has the value of the frame at which it begins, in at most 20 steps.",
    )
    wrappers: tuple[
        Annotated[WrapperSpec, BeforeValidator(_read_wrapper, json_schema_input_type=Str | WrapperSpec)], ...
    ] = Field((), description="Wrappers, the innermost first, applied before the lab flattens observations.")
    action_mask: Literal["ignore"] | None = Field(
        None,
        description="Null uses the [action mask](ACTION_MASKS.md) of an env that gives one; ignore does not, and "
        "leaves a key `action_mask` in the observation.",
    )
    info_keys: tuple[Annotated[Str, Field(min_length=1)], ...] = Field(
        (),
        description="Numbers of the env's `info` to report: the value at the last step of an episode becomes a column "
        "of the tables. `is_success` is reported without being named.",
    )

    @property
    def schedules(self) -> dict[str, ScheduleSpec]:
        """Options that change over the run."""
        return {key: value for key, value in self.kwargs.items() if isinstance(value, ScheduleSpec)}

    @model_validator(mode="after")
    def _check_clip(self) -> Self:
        if isinstance(self.clip_reward, tuple) and self.clip_reward[0] >= self.clip_reward[1]:
            raise ValueError(f"clip_reward: [low, high] expected, got {list(self.clip_reward)}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_clips(cls, data: Any) -> Any:
        if isinstance(data, dict):
            data = dict(data)
            for what in ("obs", "reward"):
                if data.get(f"normalize_{what}") is True:
                    data.setdefault(f"clip_{what}", 10.0)
            # games differ too much in their points for one set of hyperparameters
            if str(data.get("name")).rpartition(":")[2].startswith("ALE/") and not data.get("normalize_reward"):
                data.setdefault("clip_reward", 1.0)
        return data


class SearchResources(Model):
    """Resources of each session of a search; as many run in parallel as fit."""

    cpu: PositiveFloat = Field(1.0, description="Cores.")
    gpu: Annotated[Float, Field(ge=0)] = Field(0.0, description="GPUs; a fraction if several sessions share one.")


class SearchScheduler(Model):
    """Early stopping of weak trials (ASHA)."""

    grace_period: PositiveInt = Field(description="Frames before a trial may be stopped.")
    reduction_factor: Annotated[PositiveInt, Field(ge=2)] = Field(
        3, description="One trial in N continues at each rung; rungs are at grace_period times powers of N."
    )
    sessions: tuple[PositiveInt, ...] = Field(
        (1,),
        min_length=1,
        description="Sessions of a trial up to the first rung, the second, ...; then as many as the last number says.",
    )

    @model_validator(mode="after")
    def _check_sessions(self) -> Self:
        if list(self.sessions) != sorted(self.sessions):
            raise ValueError(f"sessions: a trial never has fewer sessions than before, got {list(self.sessions)}")
        return self


class StopSpec(Model):
    """When a session ends before its last frame: columns of its table, each with the value it must reach."""

    model_config = ConfigDict(extra="allow", serialize_by_alias=True)
    __pydantic_extra__: dict[str, Float | Annotated[Str, Field(pattern=r"^(<=|>=) *-?\d+(\.\d+)?(e-?\d+)?$")]]

    for_: Str = Field(
        "1 evaluation",
        alias="for",
        pattern=r"^[1-9]\d{0,5} (evaluation|row)s?$",
        description="How long the values must hold: N evaluations (of the deterministic policy), or N rows of the "
        "training table.",
    )

    @property
    def conditions(self) -> dict[str, tuple[str, float]]:
        """By column, whether the value is a lower or an upper bound, and the value."""
        parts = {name: value if isinstance(value, str) else f">={value}" for name, value in self._given.items()}
        return {name: (text[:2], float(text[2:])) for name, text in parts.items()}

    @property
    def count(self) -> int:
        """How many rows or evaluations in a row."""
        return int(self.for_.split()[0])

    @property
    def counts_evaluations(self) -> bool:
        """Whether it looks at the evaluations rather than at the training table."""
        return "evaluation" in self.for_

    @property
    def _given(self) -> dict[str, float | str]:
        return self.__pydantic_extra__ or {}

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if not self._given:
            raise ValueError("name a column and the value it must reach, e.g. {total_reward: 475, for: 5 evaluations}")
        return self


# Evaluations during training by default: how many over the run, of how many episodes.
NUM_EVAL = 20
EVAL_EPISODES = 4
# keys of `meta` by which rows also go elsewhere; they change no number
SINKS = ("tensorboard", "wandb", "mlflow", "trackio")


class MetaSpec(Model):
    """How the experiment is run and recorded."""

    seed: NonNegativeInt = Field(0, description="Seed of every random number of the run.")
    max_session: PositiveInt = Field(1, description="Sessions (seeds) per trial.")
    max_trial: PositiveInt | None = Field(1, description="Trials of a search.")
    log_frequency: PositiveInt = Field(10000, description="Frames between rows of the session table.")
    eval_frequency: PositiveInt | None = Field(
        None, description="Frames between evaluations during training; null: a twentieth of env.max_frame."
    )
    rigorous_eval: NonNegativeInt | None = Field(
        None,
        description="Episodes of an evaluation with the deterministic policy, in separate parallel envs; 0: none; "
        "null: 4, skipping evaluations that would take more than about 5 % of the time.",
    )
    final_eval: NonNegativeInt = Field(
        10, description="Episodes played at the end with the deterministic policy, in separate envs; 0: none."
    )
    checkpoint_frequency: PositiveInt | None = Field(
        None, description="Frames between resume checkpoints; null: every ten seconds, or less often if saving is slow."
    )
    keep_checkpoints: PositiveInt | None = Field(
        None,
        description="Frames between models that are kept, to play with `enjoy DIR --at FRAME`; null: only the best and "
        "the last.",
    )
    stop: StopSpec | None = Field(
        None,
        description="Ends a session early, e.g. `{total_reward: 475, for: 5 evaluations}`; null: at env.max_frame.",
    )
    video_frequency: PositiveInt | None = Field(
        None, description="Frames between videos of the deterministic policy, in session 0; null: none."
    )
    device: Str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:N or mps.")
    compile: Literal["auto"] | Bool = Field(
        "auto",
        description="Compile updates and acting, which takes half a minute at the first start; auto measures whether "
        "that pays. The choice of auto is saved with the run.",
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="bf16 computes hidden layers, but those that read vectors, in bfloat16: faster for wide "
        "layers and convolutions on GPUs and on CPUs with AVX512-BF16 or AMX. All else stays float32.",
    )
    num_threads: PositiveInt = Field(1, description="Torch threads per session; more than one is rarely faster.")
    episode_table: Bool = Field(
        False, description="Also write a table of the training episodes, one line each, into info/."
    )
    tensorboard: Bool = Field(False, description="Also write TensorBoard events into log/.")
    wandb: Bool = Field(
        False, description="Also log rows to Weights & Biases; needs `uv sync --group wandb`; offline with WANDB_MODE."
    )
    mlflow: Bool = Field(
        False, description="Also log rows to MLflow; needs `uv sync --group mlflow`; MLFLOW_TRACKING_URI says where."
    )
    trackio: Bool = Field(False, description="Also log rows to trackio; needs `uv sync --group trackio`.")
    search_resources: SearchResources = Field(SearchResources(), description="Cores and GPUs per session of a search.")
    search_scheduler: SearchScheduler | None = Field(None, description="Early stopping in a search.")

    @property
    def num_eval_episode(self) -> int:
        """Episodes of an evaluation during training."""
        return EVAL_EPISODES if self.rigorous_eval is None else self.rigorous_eval


class InitSpec(Model):
    """Trained weights to start from, instead of random ones."""

    path: Str = Field(
        min_length=1,
        description="Run folder, `DIR@FRAME` for a kept checkpoint, or a model file in a run folder.",
    )
    session: NonNegativeInt | None = Field(None, description="Session of the run; null: the best.")
    parts: Literal["all", "actor"] = Field(
        "all", description="actor takes the policy alone, from another algorithm too, such as BC."
    )
    head: Literal["same", "new"] = Field(
        "same", description="new starts with random output layers, for an env with other actions."
    )
    normalizer: Bool = Field(True, description="Also take the running mean and std of observations.")
    optimizer: Bool = Field(
        False, description="Also take the optimiser's state; the weights are then the last ones, not the best."
    )

    @model_validator(mode="after")
    def _check_optimizer(self) -> Self:
        if self.optimizer and (self.head == "new" or self.parts == "actor" or "@" in self.path):
            raise ValueError("optimizer: only the last checkpoint has one, for the same layers; leave it out")
        return self


class AgentSpec(Model):
    """Algorithm, memory and net."""

    name: Str = Field("", description="Label of the agent in plots and tables; default the algorithm's name.")
    algorithm: AlgorithmSpec
    memory: MemorySpec
    net: NetSpec
    critic_net: NetSpec | None = Field(
        None, description="Net of the critics of off-policy actor-critics such as SoftActorCritic and TD3; null: `net`."
    )
    init_from: InitSpec | None = Field(
        None, description="Trained weights to start from: a run folder, or a mapping; null: random ones."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_path(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("init_from"), str):
            data = {**data, "init_from": {"path": data["init_from"]}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _fill_label(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and isinstance(data.get("algorithm"), dict):
            data = {**data, "name": data["algorithm"].get("name", "")}
        return data

    @property
    def actor(self) -> NetSpec:
        """The net of the actor, with its own keys in place of the common ones."""
        return self.net.for_role("actor")

    @property
    def critic(self) -> NetSpec:
        """The net of the critics."""
        return self.critic_net or self.net.for_role("critic")


class Spec(Model):
    """One experiment: everything needed to repeat a run."""

    name: Str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$", description="Name of the run's files.")
    agent: AgentSpec
    env: EnvSpec = Field(description="The env, and how long to train in it.")
    meta: MetaSpec = Field(MetaSpec(), description="Seeds, sessions, evaluation, logging and resources.")
    search: Document = Field({}, description="Search space: `path__space: arguments`.")

    @model_validator(mode="before")
    @classmethod
    def _fill_training_iter(cls, data: Any) -> Any:
        """By default one gradient step per frame, for algorithms that ask for it."""
        match data:
            case {"agent": {"algorithm": {"name": str(name)} as algorithm}, "env": dict(env)}:
                kind = ALGORITHM_SPECS.get(name, AlgorithmSpec)
                if kind.trains_every_frame and algorithm.get("training_iter") is None:
                    every = [env.get("num_envs", 1), algorithm.get("training_frequency", 1)]
                    # what is no number is refused as what it is
                    whole = [number for number in every if isinstance(number, (int, float))]
                    algorithm = {**algorithm, "training_iter": max(whole, default=1)}
                    data = {**data, "agent": {**data["agent"], "algorithm": algorithm}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _fill_last_frame(cls, data: Any) -> Any:
        """What changes over frames does so until the end of the run, unless the spec says otherwise: learning rates
        fall, and importance weights undo more and more of the bias of priorities.
        """
        match data:
            case {"agent": dict(agent), "env": {"max_frame": int() | float() as max_frame}}:
                filled = {key: _with_last_frame(agent[key], max_frame) for key in NETS if key in agent}
                match agent.get("memory"):
                    case {"name": "PrioritizedReplay", **keys} if "beta" not in keys:
                        beta = {"start_val": 0.4, "end_val": 1.0, "end_step": max_frame}
                        filled["memory"] = {**agent["memory"], "beta": beta}
                data = {**data, "agent": {**agent, **filled}}
        return data

    @property
    def eval_every(self) -> int:
        """Frames between evaluations during training."""
        return self.meta.eval_frequency or max(1, self.env.max_frame // NUM_EVAL)

    def replace(self, **sections: Document) -> Self:
        """A copy with some keys of some sections changed, e.g. `replace(meta={"seed": 3})`."""
        changes = {
            section: getattr(self, section).model_copy(update=values)  # names of our own sections, not of a file
            for section, values in sections.items()
        }
        return self.model_copy(update=changes)


def _with_last_frame(net: Any, max_frame: Any) -> Any:
    """The same net, with an end frame in each schedule that counts frames."""
    if not isinstance(net, dict):
        return net
    filled: Document = {key: _with_last_frame(net[key], max_frame) for key in ROLES if key in net}
    match net.get("lr_scheduler_spec"):
        case {"name": "LinearToZero" | "LinearToMin" as name, **keys} if keys.get("frame") is None:
            filled["lr_scheduler_spec"] = {"name": name, **keys, "frame": max_frame}
    return {**net, **filled}


def _union(kinds: tuple[Any, ...], tag: str) -> Any:
    """One of the known models, chosen by the value of `tag`."""
    if len(kinds) == 1:
        return kinds[0]
    return Annotated[reduce(or_, kinds), Field(discriminator=tag)]


def build_spec_model() -> type[Spec]:
    """The model of a spec with everything registered; the single source of validation and the JSON Schema."""
    return _build_spec_model(tuple(ALGORITHM_SPECS.values()), tuple(MEMORY_SPECS.values()), tuple(NET_SPECS.values()))


@cache
def _build_spec_model(
    algorithms: tuple[type[AlgorithmSpec], ...], memories: tuple[type[MemorySpec], ...], nets: tuple[type[NetSpec], ...]
) -> type[Spec]:
    net: Any = _union(nets, "type")
    critic_net: Any = net | None
    agent = create_model(
        "AgentSpec",
        __base__=AgentSpec,
        algorithm=(_union(algorithms, "name"), Field(description="Algorithm and its hyperparameters.")),
        memory=(_union(memories, "name"), Field(description="Memory of experience.")),
        net=(net, Field(description="Nets, optimiser and learning rate.")),
        critic_net=(
            critic_net,
            Field(None, description=AgentSpec.model_fields["critic_net"].description),
        ),
    )
    return create_model("Spec", __base__=Spec, agent=(agent, Field(description="The agent that learns.")))
