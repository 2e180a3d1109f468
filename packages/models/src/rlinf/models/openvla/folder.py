"""What a published folder says of itself: `config.json`, `preprocessor_config.json`, `dataset_statistics.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from rlinf.core.data import EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.actor_config import MISSING_STATISTICS, check_vla, folder_of
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.openvla.architecture import PrismaticConfig, TextConfig, VisionConfig

OWN_VISION = "rlinf_vision"
"""The key under which a folder that we wrote has the sizes of its vision transformers; published ones name them only."""
_DINO, _SIGLIP = PrismaticConfig.base().vision
_PUBLISHED = {"vit_large_patch14_reg4_dinov2.lvd142m": _DINO, "vit_so400m_patch14_siglip_224": _SIGLIP}
_BINS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """What is needed beside the weights."""

    architecture: PrismaticConfig
    bins: int
    """n, bins of each action."""
    statistics: Mapping[str, Any]
    """By dataset: `action` with `q01`, `q99` and perhaps `mask`."""


def read_facts(folder: Path) -> FolderFacts:
    """Reads the small files of a folder.

    Raises:
        CheckpointError: one is missing, or describes a network that isn't built here.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(str(folder), "there is no config.json", "Give the folder of a Hugging Face checkpoint.")
    config = read_json(folder / "config.json")
    strategy = config.get("image_resize_strategy", "resize-naive")
    if strategy != "resize-naive":
        raise CheckpointError(f"{folder}/config.json", f"expected image_resize_strategy resize-naive, found '{strategy}'")
    architecture = PrismaticConfig(
        vision=_vision(config, read_json(folder / "preprocessor_config.json"), folder),
        text=_text(config.get("text_config", {})),
        pad_to_multiple_of=int(config.get("pad_to_multiple_of", 64)),
    )
    bins = int(config.get("n_action_bins", _BINS))
    return FolderFacts(architecture=architecture, bins=bins, statistics=read_statistics(folder))


def read_statistics(folder: Path) -> Mapping[str, Any]:
    """Those of a folder, by dataset: `action` with `q01`, `q99` and perhaps `mask`."""
    # Fine-tuning writes its data's statistics into a file of their own; the config may keep those of pre-training.
    return read_json(folder / "dataset_statistics.json") or read_json(folder / "config.json").get("norm_stats", {})


class ReadsFolder:
    """What the configurations of OpenVLA and OpenVLA-OFT can say of their folder before anything is built."""

    __slots__ = ()

    registered_as: ClassVar[str]
    """The name of the model, for messages."""
    model_path: str | None
    """The folder; None where the weights are random."""
    unnorm_key: str | None
    """Whose statistics of it are used."""
    max_prompt_length: int
    """Tokens that there is room for in each prompt."""

    def check(self, place: str) -> None:
        """As `check_vla`; and refuses a dataset of which the folder has no statistics.

        Raises:
            MissingExtra: transformers is not installed.
            ConfigError: there is no such folder, or no such dataset in it.
        """
        check_vla(self.model_path, place, unnorm_key=self.unnorm_key)
        folder = folder_of(self.model_path)
        if folder is not None:
            checked_key(folder, self.unnorm_key, place)

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        # After the refusals that need no tokenizer.
        from rlinf.models.openvla.prompt import expect_room

        expect_room(texts, model_path=self.model_path, length=self.max_prompt_length, place=place)

    def check_statistics(self, place: str, actions: int | None = None) -> None:
        """Refuses a folder without the statistics that are asked for, or with those of another number of actions.

        Args:
            place: the section, for messages.
            actions: of how many they must be, if that is known.

        Raises:
            ConfigError: the message has both sides.
        """
        folder = folder_of(self.model_path)
        if folder is None:
            return
        found = checked_key(folder, self.unnorm_key, place)
        if found is None:
            problem = f"'{self.model_path}' has no statistics of actions (norm_stats in config.json, or dataset_statistics.json)"
            raise ConfigError(f"{place}.model_path", problem, MISSING_STATISTICS.format(model=self.registered_as))
        size = len(found["q01"])
        if actions not in (None, size):
            problem = f"the statistics in '{self.model_path}' are of {size} actions, and the environment takes {actions}"
            raise ConfigError(f"{place}.unnorm_key", problem, "Choose statistics of this robot, or its environment.")


def checked_key(folder: Path, key: str | None, place: str) -> Mapping[str, Any] | None:
    """The statistics of actions of one dataset; None if the folder has none at all.

    Raises:
        ConfigError: `place` has no such dataset, or there are several and none is named.
    """
    try:
        return action_statistics(read_statistics(folder), key)
    except ConfigError as error:
        raise ConfigError(f"{place}.{error.place}", f"'{folder}': {error.problem}", error.remedy) from error


def action_statistics(statistics: Mapping[str, Any], key: str | None) -> Mapping[str, Any] | None:
    """The statistics of the actions of one dataset; None if there are none at all.

    Raises:
        ConfigError: `key` is unknown, or it is None and there are several.
    """
    if not statistics and key is None:
        return None
    if key is None and len(statistics) == 1:
        key = next(iter(statistics))
    if key is None or key not in statistics:
        found = f"expected one of the checkpoint's datasets, found {key!r}"
        raise ConfigError("unnorm_key", found, f"There are {', '.join(sorted(statistics)) or 'none'}.")
    return statistics[key]["action"]


def _vision(config: Mapping[str, Any], processor: Mapping[str, Any], folder: Path) -> tuple[VisionConfig, VisionConfig]:
    """Both vision transformers, in the order in which the channels are stacked."""
    names: list[str] = config.get("timm_model_ids", [])
    unknown = [name for name in names if name not in _PUBLISHED]
    if OWN_VISION in config:
        towers = [VisionConfig(**_tuples(sizes)) for sizes in config[OWN_VISION]]
    elif len(names) == 2 and not unknown:
        towers = [replace(_PUBLISHED[name], image_size=size) for name, size in zip(names, config["image_sizes"], strict=True)]
    else:
        found = f"expected two of {', '.join(_PUBLISHED)}, found {names}"
        raise CheckpointError(f"{folder}/config.json: timm_model_ids", found)
    means, stds = processor.get("means"), processor.get("stds")
    if means is not None and stds is not None:
        towers = [replace(t, mean=tuple(mean), std=tuple(std)) for t, mean, std in zip(towers, means, stds, strict=True)]
    return towers[0], towers[1]


def _tuples(sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(cast("list[float]", value)) if isinstance(value, list) else value for name, value in sizes.items()}


def _text(config: Mapping[str, Any]) -> TextConfig:
    """The sizes that are named; those of a Llama-2-7B for the rest."""
    known = {field.name for field in dataclasses.fields(TextConfig)}
    return TextConfig(**{name: value for name, value in config.items() if name in known})
