"""`ModelParallelComponentPlacement`: models that are spread over accelerators by tensor, context and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler.hardware.inventory import Inventory
from rlinf.scheduler.placement.component import ComponentPlacement, Machines, PlacementMode, as_written, section
from rlinf.scheduler.placement.grammar import PLACE
from rlinf.scheduler.placement.strategies import PackedPlacementStrategy, PlacementStrategy
from rlinf.scheduler.ranks import format_ranks

REQUIRED = ("actor", "rollout", "reward")
INFERENCE = ("inference", "actor_inference")
TRAINED = ("actor", "critic")
MODELS = (*TRAINED, "rollout", *INFERENCE, "critic_inference")


@dataclass(frozen=True, slots=True)
class ModelParallel:
    """How one copy of a model is spread: over `tensor` × `context` × `pipeline` accelerators."""

    tensor: int = 1
    context: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        """Accelerators of one copy."""
        return self.tensor * self.context * self.pipeline


class ModelParallelComponentPlacement(ComponentPlacement):
    """Places `actor`, `rollout`, `reward`; if they are written, `inference` (or `actor_inference`), `critic`, `critic_inference`.

    The mode follows from what is written: actor and rollout on the same accelerators are collocated; all models on accelerators of
    their own are disaggregated. The processes of a model follow from its parallel sizes, read from
    `actor.{tensor_model,context,pipeline_model}_parallel_size` or, of the same names, `actor.model` (`critic` and the inference
    components likewise) and `rollout.{tensor,pipeline}_parallel_size`; each is 1 if it is not there.

    Args:
        cfg: the run's configuration.
        cluster: where it will run; an inventory will do.
        required: see `ComponentPlacement`.
        optional: see `ComponentPlacement`.

    Raises:
        PlacementError: a component is missing, not contiguous, or shares accelerators in a way that is none of the modes.
        ConfigError: a parallel size can't be read, or does not divide the accelerators of its model.
    """

    def __init__(
        self, cfg: object, cluster: Machines | Inventory, *, required: Sequence[str] | None = None, optional: Sequence[str] = ()
    ) -> None:
        super().__init__(cfg, cluster, required=required, optional=optional)
        for component in REQUIRED:
            if component not in self.components:
                raise PlacementError(f"{PLACE}.{component}", "this component is not placed", "Place actor, rollout and reward.")
        if set(INFERENCE) <= set(self.components):
            raise PlacementError(
                f"{PLACE}.actor_inference", "another name of inference, which is placed too", "Keep one of the two."
            )
        self._parallel = {name: _read_parallel(cfg, name) for name in self._models()}
        self._devices = {name: self._contiguous(name) for name in self._models()}
        self._recomputes = section(section(cfg, "algorithm"), "recompute_logprobs") is True
        self._mode = self._find_mode()
        for name in self._models():
            self._check_sizes(name)
        # A strategy that the cluster can't satisfy is refused here, before anything is launched.
        for name in self.components:
            self.plan(name)

    @property
    def placement_mode(self) -> PlacementMode:
        """`COLLOCATED` or `DISAGGREGATED`."""
        return self._mode

    @property
    def actor_dp_size(self) -> int:
        """Copies of the actor: accelerators / (tensor × context × pipeline)."""
        return self.dp_size("actor")

    @property
    def rollout_dp_size(self) -> int:
        """Copies of the rollout model: accelerators / (tensor × pipeline)."""
        return self.dp_size("rollout")

    @property
    def inference_dp_size(self) -> int:
        """Copies of the inference model: accelerators / (tensor × pipeline); 0 if it is not placed."""
        return next((self.dp_size(name) for name in INFERENCE if name in self.components), 0)

    def dp_size(self, component: str) -> int:
        """Copies of a model."""
        self.spec(component)
        if component not in self._devices:
            raise PlacementError(f"{PLACE}.{component}", "has no parallel sizes", f"Models are {', '.join(self._devices)}.")
        return len(self._devices[component]) // self._parallel[component].size

    def get_strategy(self, component: str) -> PlacementStrategy:
        spec = self.spec(component)
        if component not in self._devices:
            return self._within_cores(as_written(spec))
        first, last = spec.resources[0][0], spec.resources[-1][-1]
        # A trainer has a process on each accelerator, an engine one for each copy of its model.
        if component != "rollout":
            return self._within_cores(PackedPlacementStrategy(first, last, node_group=spec.pool.labels))
        packed = PackedPlacementStrategy(first, last, self._parallel["rollout"].size, self._stride(), spec.pool.labels)
        return self._within_cores(packed)

    def _models(self) -> list[str]:
        return [name for name in self.components if name in MODELS]

    def _stride(self) -> int:
        """A rollout process takes one shard of each block of actor shards that it is made of."""
        if self._mode is not PlacementMode.COLLOCATED:
            return 1
        return max(1, self._parallel["actor"].tensor // self._parallel["rollout"].tensor)

    def _contiguous(self, component: str) -> list[int]:
        """The cluster-wide ranks of a model's accelerators."""
        spec = self.spec(component)
        place = f"{PLACE}.{component}"
        if spec.kind != "accelerator":
            remedy = "Set cluster.virtual_accelerators.count for a trial run without accelerators."
            raise PlacementError(place, f"a model is placed on accelerators, found '{spec.text}' of a {spec.kind}", remedy)
        ranks = sorted({rank for process in spec.resources for rank in process})
        if len(ranks) != ranks[-1] - ranks[0] + 1:
            problem = f"expected one range of accelerators for a model, found {format_ranks(ranks)}"
            raise PlacementError(place, problem, "Close the gaps, or use HybridComponentPlacement.")
        return [spec.pool.resources[rank].rank for rank in ranks]

    def _find_mode(self) -> PlacementMode:
        for name in (*INFERENCE, "critic_inference"):
            if name in self._devices and not self._recomputes:
                remedy = "Set it to true, or leave the component out."
                raise PlacementError(f"{PLACE}.{name}", "is placed, but algorithm.recompute_logprobs is not true", remedy)
        if self._devices["actor"] == self._devices["rollout"]:
            self._check_collocated()
            return PlacementMode.COLLOCATED
        for one, other in combinations(self._devices, 2):
            self._check_apart(one, other)
        return PlacementMode.DISAGGREGATED

    def _check_apart(self, one: str, other: str) -> None:
        shared = sorted(set(self._devices[one]) & set(self._devices[other]))
        if shared:
            problem = f"shares accelerators {format_ranks(shared)} with {one}, but not all of them are shared by actor and rollout"
            remedy = "Place actor and rollout on the same accelerators, or each model on its own; or use HybridComponentPlacement."
            raise PlacementError(f"{PLACE}.{other}", problem, remedy)

    def _check_collocated(self) -> None:
        for name in (*INFERENCE, "critic_inference"):
            if name in self._devices:
                raise PlacementError(
                    f"{PLACE}.{name}", "actor and rollout are collocated, so the actor infers itself", "Leave it out."
                )
        critic = self._devices.get("critic")
        if critic is not None and critic != self._devices["actor"]:
            self._check_apart("actor", "critic")
        actor, rollout = self._parallel["actor"].tensor, self._parallel["rollout"].tensor
        if max(actor, rollout) % min(actor, rollout):
            problem = f"{rollout} can't be matched with the actor's {actor} on the same accelerators"
            raise ConfigError("rollout.tensor_parallel_size", problem, "One of the two must divide the other.")

    def _check_sizes(self, component: str) -> None:
        count, parallel = len(self._devices[component]), self._parallel[component]
        if count % parallel.size:
            sizes = f"tensor {parallel.tensor} × context {parallel.context} × pipeline {parallel.pipeline}"
            problem = f"{count} accelerators can't hold whole copies of {parallel.size} ({sizes})"
            raise PlacementError(f"{PLACE}.{component}", problem, f"Use a multiple of {parallel.size}, or other parallel sizes.")
        written = len(self.spec(component).resources)
        derived = count // parallel.size if component == "rollout" else count
        if written not in (count, derived):
            problem = f"'{self.spec(component).text}' asks for {written} processes, but its parallel sizes make {derived}"
            raise PlacementError(f"{PLACE}.{component}", problem, "Write the accelerators only.")


def _read_parallel(cfg: object, component: str) -> ModelParallel:
    if component == "rollout":
        return ModelParallel(
            tensor=_size(cfg, "rollout", "tensor_parallel_size") or 1,
            pipeline=_size(cfg, "rollout", "pipeline_parallel_size") or 1,
        )
    names = (component, "inference") if component == "actor_inference" else (component,)
    place = next((name for name in names if section(cfg, name) is not None), "")
    if not place:
        return ModelParallel()
    return ModelParallel(
        tensor=_model_size(cfg, place, "tensor_model_parallel_size"),
        context=_model_size(cfg, place, "context_parallel_size") if component in TRAINED else 1,
        pipeline=_model_size(cfg, place, "pipeline_model_parallel_size"),
    )


def _model_size(cfg: object, place: str, key: str) -> int:
    """A size that the trainer reads, or one that stands with the model."""
    ours, models = _size(cfg, place, key), _size(cfg, f"{place}.model", key)
    if ours is not None and models is not None and ours != models:
        raise ConfigError(f"{place}.model.{key}", f"found {models}, but {place}.{key} is {ours}", "Write one of the two.")
    return ours or models or 1


def _size(cfg: object, place: str, key: str) -> int | None:
    found = cfg
    for name in place.split("."):
        found = section(found, name)
    value = section(found, key)
    # A `bool` is an `int`, too.
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{place}.{key}", f"expected a whole number above 0, found {value!r}")
    return value
