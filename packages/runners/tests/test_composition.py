import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rlinf.core.config.provenance import explain, flatten
from rlinf.core.errors import ConfigError, UnknownName
from rlinf.runners.config.composition import compose_file, compose_recipe, parse_command_line


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text("runner: {max_steps: 10, seed: 1}\nenv: {train: {n: 4}}\n")
    (tmp_path / "child.yaml").write_text("defaults: [base, _self_]\nrunner: {seed: 2}\n")
    return tmp_path


def test_a_recipe_builds_on_another_and_the_command_line_wins(recipes: Path) -> None:
    composed = compose_recipe(recipes, "child", ["runner.max_steps=20", "env.train.new_key=[1,2]"])
    assert composed.data["runner"] == {"max_steps": 20, "seed": 2}
    assert composed.data["env"]["train"] == {"n": 4, "new_key": [1, 2]}


def test_only_the_files_of_the_recipe_are_read_and_hydra_stays_as_it_was(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever uses Hydra in the same process finds its launchers and its logging, after a recipe with a fault as well."""
    (recipes / "wrong.yaml").write_text("defaults: [base, _self_]\nrunner: [1]\n")
    settings = ConfigStore.instance().load("hydra/config.yaml").node
    read: list[object] = []
    load = OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", lambda file: read.append(file) or load(file))
    compose_recipe(recipes, "child")
    assert len(read) == 2, read
    with pytest.raises(ConfigError, match="wrong"):
        compose_recipe(recipes, "wrong")
    assert ConfigStore.instance().load("hydra/config.yaml").node == settings
    assert {"launcher", "job_logging"} <= {key for each in settings.defaults for key in each}


def test_every_value_knows_where_it_came_from(recipes: Path) -> None:
    composed = compose_recipe(recipes, "child", ["runner.max_steps=20"])
    assert explain(composed.data, composed.provenance, "runner.max_steps") == "runner.max_steps = 20  (command line)"
    assert explain(composed.data, composed.provenance, "runner.seed").endswith("(child.yaml)")
    assert explain(composed.data, composed.provenance, "env").endswith("(base.yaml)")


def test_an_unknown_recipe_names_the_nearest(recipes: Path) -> None:
    with pytest.raises(UnknownName, match=r"no recipe 'chld' in '.*'\. Did you mean 'child'"):
        compose_recipe(recipes, "chld")


def test_the_file_of_a_recipe_is_named_with_or_without_its_suffix(recipes: Path) -> None:
    for name in ("child", "child.yaml"):
        assert compose_file(recipes / name).data["runner"]["seed"] == 2
    with pytest.raises(
        ConfigError, match=r"^recipe: there is no file '.*/chld\.yaml'\. Did you mean 'child'\? Recipes: base, child\."
    ):
        compose_file(recipes / "chld")
    with pytest.raises(ConfigError, match=r"^recipe: there is no file '.*/run/x\.yaml'\. Name a YAML file\."):
        compose_file(recipes / "run/x")


@pytest.mark.parametrize("override", ["runner.max_steps", "runner.max_steps=[1", "a=b=c{"])
def test_a_malformed_override_is_a_configuration_error(recipes: Path, override: str) -> None:
    with pytest.raises(ConfigError):
        compose_recipe(recipes, "base", [override])


def test_a_section_in_place_of_a_list_is_told_as_that_and_the_other_way_round(recipes: Path) -> None:
    (recipes / "list.yaml").write_text("agent: {tools: [{type: calculator}], tool_format: {type: hermes}}\n")
    with pytest.raises(ConfigError, match=r"^agent\.tools: expected a list, found a section\. Write it as \[\{…\}, \{…\}\]"):
        compose_recipe(recipes, "list", ["agent.tools={type: calculator}"])
    with pytest.raises(ConfigError, match=r"^agent\.tool_format: expected a section, found a list\. Write it as \{key: value\}"):
        compose_recipe(recipes, "list", ["agent.tool_format=[hermes]"])


@pytest.mark.parametrize("values", ["1,2", "range(0,4)", "choice(1,2)", "glob(*)"])
def test_several_values_are_refused_with_what_works_here(recipes: Path, values: str) -> None:
    with pytest.raises(ConfigError, match=r"^runner\.seed: .* is for several runs, and this is one\. Loop in the shell") as caught:
        compose_recipe(recipes, "base", [f"runner.seed={values}"])
    assert "multirun" not in str(caught.value)


def test_malformed_yaml_is_a_configuration_error(recipes: Path) -> None:
    (recipes / "broken.yaml").write_text("runner: {max_steps: 1\nx: [")
    with pytest.raises(ConfigError, match="broken"):
        compose_recipe(recipes, "broken")


def test_options_and_overrides_mix(recipes: Path) -> None:
    composition, key = parse_command_line(
        ["runner.seed=5", "--config-name", "base", "--explain", "runner"],
        config_dir=recipes,
        default="child",
        description="",
    )
    assert composition.name == "base"
    assert composition.data["runner"]["seed"] == 5
    assert key == "runner"


def test_a_missing_recipe_or_group_in_the_defaults_is_named(recipes: Path) -> None:
    for text in ("defaults: [bsae, _self_]\n", "defaults: [{model: tiny}, _self_]\n", "defaults: [model/tiny, _self_]\n"):
        (recipes / "wrong.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"wrong\.yaml: defaults: there is no recipe '(bsae|model/tiny)'"):
            compose_recipe(recipes, "wrong")


def test_a_recipe_elsewhere_is_told_where_it_may_build_on_another(recipes: Path, tmp_path: Path) -> None:
    (recipes / "mine.yaml").write_text("defaults: [bass, _self_]\nrunner: {seed: 3}\n")
    with pytest.raises(ConfigError, match=r"Name the folder of one elsewhere as hydra\.searchpath: .*Did you mean 'base'"):
        compose_recipe(recipes, "mine")
    (recipes / "loose.yaml").write_text("defaults: [base, optional kind: nothing, _self_]\nrunner: {seed: 3}\n")
    assert compose_recipe(recipes, "loose").data["runner"]["seed"] == 3
    path = str(recipes / "base.yaml")
    with pytest.raises(ConfigError, match=r"--config-name: expected the name of a recipe, found the path .*--config-name base\.$"):
        compose_recipe(tmp_path, path)


@pytest.mark.parametrize(
    "named", ["file://{}", "{}", "file://shared", "pkg://recipes_of_theirs/shared", "file://${{oc.env:THEIRS}}"]
)
def test_a_recipe_builds_on_those_of_the_folders_that_it_names(
    recipes: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    theirs = tmp_path_factory.mktemp("it's a, folder=") / "recipes_of_theirs/shared"
    (theirs / "model").mkdir(parents=True)
    (theirs / "far.yaml").write_text("defaults: [model: tiny, base, _self_]\nrunner: {seed: 4}\nkind: far\n")
    (theirs / "model/tiny.yaml").write_text("width: 4\n")
    monkeypatch.chdir(theirs.parent)
    monkeypatch.setattr(sys, "path", [str(theirs.parents[1]), *sys.path])
    monkeypatch.setenv("THEIRS", str(theirs))
    (recipes / "mine.yaml").write_text(
        f'hydra: {{searchpath: ["{named.format(theirs)}"]}}\ndefaults: [far, _self_]\nrunner: {{seed: 5}}\n'
    )
    composed = compose_recipe(recipes, "mine", ["runner.max_steps=7"])
    assert composed.data == {
        **compose_recipe(recipes, "base").data,
        "runner": {"max_steps": 7, "seed": 5},
        "model": {"width": 4},
        "kind": "far",
    }
    assert composed.provenance["kind"] == str(theirs / "far.yaml"), "whose file it is would be a guess"
    assert composed.provenance["runner.seed"] == "mine.yaml"
    assert not [path for path in composed.provenance if path.startswith("hydra")]


def test_a_recipe_elsewhere_builds_on_those_of_the_app(recipes: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    mine = tmp_path_factory.mktemp("mine")
    (mine / "mine.yaml").write_text("defaults: [child, _self_]\nrunner: {seed: 5}\n")
    composition, _ = parse_command_line(
        ["--config-dir", str(mine), "--config-name", "mine"], config_dir=recipes, default="child", description=""
    )
    assert composition.data["runner"] == {**compose_recipe(recipes, "child").data["runner"], "seed": 5}
    with pytest.raises(ConfigError, match="there is no recipe 'child' in "):
        compose_file(mine / "mine.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hydra: {searchpath: [file://nowhere]}", r"mine\.yaml: hydra\.searchpath: there is no folder '/.*nowhere'"),
        ("hydra: {searchpath: [pkg://no.such.package]}", r"hydra\.searchpath: there is no package 'no\.such\.package'"),
        ("hydra: {searchpath: [pkg://json.decoder]}", r"hydra\.searchpath: there is no package 'json\.decoder'"),
        ("hydra: {searchpath: ['s3://bucket']}", r"hydra\.searchpath: expected a folder or a package, found 's3://bucket'"),
        ("hydra: {searchpath: here}", r"hydra\.searchpath: expected a list of folders, found 'here'"),
        ("hydra: {searchpath: ['${oc.env:NOT_SET_AT_ALL}']}", r"mine\.yaml: hydra\.searchpath: .*NOT_SET_AT_ALL"),
        ("hydra: {searchpath: [.], run: {dir: .}}", r"hydra\.run\.dir: nothing here reads"),
        ("hydra: {run: {dir: .}, output_subdir: null}", r"^hydra\.run\.dir, hydra\.output_subdir: nothing here reads"),
        ("hydra: 5", r"hydra: nothing here reads"),
        ("defaults: [searching]", r"searching\.yaml: hydra\.searchpath: counts in the recipe that is run alone"),
    ],
)
def test_a_search_path_that_leads_nowhere_is_refused(recipes: Path, content: str, message: str) -> None:
    (recipes / "searching.yaml").write_text("hydra: {searchpath: [.]}\n")
    (recipes / "mine.yaml").write_text(f"{content}\n")
    with pytest.raises(ConfigError, match=message):
        compose_recipe(recipes, "mine")


def test_groups_in_the_defaults_are_composed_and_remembered(recipes: Path) -> None:
    (recipes / "model").mkdir()
    (recipes / "model/tiny.yaml").write_text("width: 4\n")
    (recipes / "model/large.yaml").write_text("defaults: [tiny, _self_]\ndepth: 9\n")
    (recipes / "grouped.yaml").write_text("defaults: [base, {model: large}, {optional kind: nothing}, _self_]\nrunner: {seed: 3}\n")
    composed = compose_recipe(recipes, "grouped")
    assert composed.data["model"] == {"width": 4, "depth": 9}
    said = explain(composed.data, composed.provenance, "model")
    assert said.splitlines() == ["model.width = 4  (model/tiny.yaml)", "model.depth = 9  (model/large.yaml)"]
    assert explain(composed.data, composed.provenance, "runner.seed").endswith("(grouped.yaml)")


def test_the_package_of_a_file_is_the_one_that_hydra_gives_it(recipes: Path) -> None:
    """What stands in `defaults` counts before the header of the file, which is absolute; `/` looks from the top."""
    (recipes / "model").mkdir()
    (recipes / "parts").mkdir()
    (recipes / "model/tiny.yaml").write_text("# @package _global_.actor.model\nwidth: 4\n")
    (recipes / "model/tall.yaml").write_text("\n# @package critic\n\nheight: 5\n")
    (recipes / "parts/small.yaml").write_text("size: 1\n")
    (recipes / "model/whole.yaml").write_text("defaults: [/parts/small, /parts@_here_: small, /parts@rest: small, tiny, _self_]\n")
    (recipes / "packed.yaml").write_text(
        "defaults:\n- model: tiny\n- model@named: tall\n- model@_global_.far: tall\n- model/tall\n- /model/whole\n- _self_\n"
    )
    composed = compose_recipe(recipes, "packed")
    leaves = flatten(composed.data)
    assert leaves == {
        "actor.model.width": 4,
        "named.height": 5,
        "far.height": 5,
        "critic.height": 5,
        "model.parts.size": 1,
        "model.size": 1,
        "model.rest.size": 1,
    }
    assert {path: composed.provenance[path] for path in leaves} == {
        **dict.fromkeys(("named.height", "far.height", "critic.height"), "model/tall.yaml"),
        **dict.fromkeys(("model.parts.size", "model.size", "model.rest.size"), "parts/small.yaml"),
        "actor.model.width": "model/tiny.yaml",
    }


TINY, TALL, DEEP, SMALL, BIG = 4, 5, 3, 1, 2
FILES = {"model/tiny": TINY, "model/tall": TALL, "model/deep": DEEP, "model/part/small": SMALL, "model/part/big": BIG}
ELSEWHERE = "[on_tiny, model@actor.model: deep, override model/part@actor.model.part: big]"


@pytest.mark.parametrize(
    ("defaults", "overrides", "leaves"),
    [
        ("[on_tiny, override model: tall, _self_]", [], {"model.height": TALL}),
        ("[on_tiny, override /model: deep]", [], {"model.depth": DEEP, "model.part.size": SMALL}),
        ("[on_tiny, override model: deep, override model/part: big]", [], {"model.depth": DEEP, "model.part.size": BIG}),
        ("[on_tiny, override model: tall]", ["model=deep"], {"model.depth": DEEP, "model.part.size": SMALL}),
        ("[on_tiny]", ["model=[tiny,tall]"], {"model.width": TINY, "model.height": TALL}),
        ("[on_tiny]", ["model=deep", "model/part=big"], {"model.depth": DEEP, "model.part.size": BIG}),
        ("[on_tiny]", ["~model"], {}),
        ("[on_tiny, override model: null]", [], {}),
        ("[model: [tiny, tall]]", ["model=deep"], {"model.depth": DEEP, "model.part.size": SMALL}),
        ("[model: [tiny, tall.yaml]]", [], {"model.width": TINY, "model.height": TALL}),
        ("[on_tiny, override model: [tiny, tall]]", [], {"model.width": TINY, "model.height": TALL}),
        ("[on_tiny, optional model@far: tiny, override model@far: nowhere]", [], {"model.width": TINY}),
        ("[on_tiny, model@actor.model: tall]", ["model@actor.model=tiny"], {"model.width": TINY, "actor.model.width": TINY}),
        (ELSEWHERE, ["~model"], {"actor.model.depth": DEEP, "actor.model.part.size": BIG}),
        ("[]", ["+model=tiny", "+model@actor.model=tall"], {"model.width": TINY, "actor.model.height": TALL}),
    ],
)
def test_a_file_of_a_folder_is_chosen_as_hydra_does(
    recipes: Path, defaults: str, overrides: list[str], leaves: dict[str, int]
) -> None:
    """By `override` in the defaults, and on the command line; and it is known whose value each is."""
    (recipes / "model/part").mkdir(parents=True)
    for name, text in (
        ("on_tiny", "defaults: [model: tiny, _self_]\n"),
        ("model/tiny", f"width: {TINY}\n"),
        ("model/tall", f"height: {TALL}\n"),
        ("model/deep", f"defaults: [part: small, _self_]\ndepth: {DEEP}\n"),
        ("model/part/small", f"size: {SMALL}\n"),
        ("model/part/big", f"size: {BIG}\n"),
        ("mine", f"defaults: {defaults}\nkind: mine\n"),
    ):
        (recipes / f"{name}.yaml").write_text(text)
    composed = compose_recipe(recipes, "mine", overrides)
    assert flatten(composed.data) == {"kind": "mine", **leaves}
    assert composed.provenance["kind"] == "mine.yaml"
    whose = {path: next(name for name, its in FILES.items() if its == value) for path, value in leaves.items()}
    assert {path: composed.provenance[path] for path in leaves} == {path: f"{name}.yaml" for path, name in whose.items()}


@pytest.mark.parametrize(
    ("defaults", "overrides", "leaves"),
    [
        (
            "[size: small, 'model@actor.model': '${size}', _self_]",
            [],
            {"runner.steps": (3, "size/small"), "actor.model.width": (4, "model/small")},
        ),
        (
            "['model@actor.model': '${size}', size: small]",
            ["size=large"],
            {"runner.steps": (5, "size/large"), "actor.model.width": (9, "model/large")},
        ),
        ("[size: small, 'model/${size}@here', _self_]", [], {"runner.steps": (3, "size/small"), "here.width": (4, "model/small")}),
        (
            "[size: small, model: 'of_${size}_${robot}', robot: arm]",
            [],
            {"runner.steps": (3, "size/small"), "robot.arms": (1, "robot/arm"), "model.width": (6, "model/of_small_arm")},
        ),
        ("[size: small, optional model: 'no_${size}']", [], {"runner.steps": (3, "size/small")}),
    ],
)
def test_a_default_that_refers_to_a_choice_says_whose_its_values_are(
    recipes: Path, defaults: str, overrides: list[str], leaves: dict[str, tuple[int, str]]
) -> None:
    for name, text in (
        ("size/small", "# @package runner\nsteps: 3\n"),
        ("size/large", "# @package runner\nsteps: 5\n"),
        ("robot/arm", "arms: 1\n"),
        ("model/small", "width: 4\n"),
        ("model/large", "width: 9\n"),
        ("model/of_small_arm", "width: 6\n"),
        ("mine", f"defaults: {defaults}\nkind: mine\n"),
    ):
        (recipes / name).parent.mkdir(exist_ok=True)
        (recipes / f"{name}.yaml").write_text(text)
    composed = compose_recipe(recipes, "mine", overrides)
    assert flatten(composed.data) == {"kind": "mine", **{path: value for path, (value, _) in leaves.items()}}
    assert {path: composed.provenance[path] for path in leaves} == {path: f"{file}.yaml" for path, (_, file) in leaves.items()}


def test_an_override_that_refers_to_a_choice_is_one(recipes: Path) -> None:
    (recipes / "model").mkdir()
    (recipes / "model/tiny.yaml").write_text("width: 4\n")
    (recipes / "model/tall.yaml").write_text("height: 5\n")
    (recipes / "mine.yaml").write_text("defaults: [model: tiny, optional nothing: tall, override model: '${nothing}', _self_]\n")
    composed = compose_recipe(recipes, "mine")
    assert composed.data == {"model": {"height": 5}}
    assert composed.provenance["model.height"] == "model/tall.yaml"


@pytest.mark.parametrize(
    ("defaults", "overrides", "message"),
    [
        ("[model: tiny]", ["model=tny"], r"^model: no 'tny' in the folder 'model'\. Did you mean 'tiny'\?"),
        ("[model@actor.model: tiny, override model@actor.model: tny]", [], r"^model@actor\.model: no 'tny' in the folder 'model'"),
        ("[model: tiny, override modle: tiny]", [], r"Could not override 'modle'"),
        ("[override hydra/job_logging: stdout]", [], r"^hydra/job_logging: nothing here reads the settings of Hydra itself"),
        ("[/hydra/launcher: joblib]", [], r"^hydra/launcher: nothing here reads the settings of Hydra itself"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(recipes: Path, defaults: str, overrides: list[str], message: str) -> None:
    (recipes / "model").mkdir()
    (recipes / "model/tiny.yaml").write_text("width: 4\n")
    (recipes / "mine.yaml").write_text(f"defaults: {defaults}\n")
    with pytest.raises(ConfigError, match=message):
        compose_recipe(recipes, "mine", overrides)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# für alle\nrunner: {}\n".encode("latin-1"), r"odd\.yaml: expected text in UTF-8.*line 1"),
        (b"runner: {seed: 1}\n# \xe9\n", r"odd\.yaml: expected text in UTF-8.*line 2"),
        (b"\xff\xfer\x00u\x00n\x00", r"odd\.yaml: expected text in UTF-8"),
        (b"- a\n- b\n", r"odd"),
        (b"just a text\n", r"odd"),
        (b"defaults: [odd]\n", r"odd"),
        (b"defaults: 5\n", r"odd"),
        (b"defaults: [[1, 2]]\n", r"odd"),
        (b"a: ${b}\n", r"odd"),
        (b"a: !!python/object:os.system {}\n", r"odd"),
        (b"a: {b: 1, b: 2}\n", r"odd"),
        (b"hydra: {run: {dir: x}}\n", r"hydra.*runner\.logger\.log_path"),
    ],
)
def test_a_recipe_that_can_not_be_read_is_named(recipes: Path, content: bytes, message: str) -> None:
    (recipes / "odd.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        compose_recipe(recipes, "odd")


def test_a_recipe_that_a_recipe_builds_on_is_named_too(recipes: Path) -> None:
    (recipes / "latin.yaml").write_bytes("# für alle\n".encode("latin-1"))
    (recipes / "on_latin.yaml").write_text("defaults: [latin]\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: expected text in UTF-8"):
        compose_recipe(recipes, "on_latin")


def test_an_empty_recipe_and_a_byte_order_mark_are_fine(recipes: Path) -> None:
    (recipes / "empty.yaml").write_text("")
    assert compose_recipe(recipes, "empty", ["a.b=1"]).data == {"a": {"b": 1}}
    (recipes / "marked.yaml").write_bytes(b"\xef\xbb\xbfrunner: {seed: 1}\n")
    assert compose_recipe(recipes, "marked").data == {"runner": {"seed": 1}}


def test_an_app_finds_recipes_in_the_folders_beside_its_own(tmp_path: Path) -> None:
    for folder, name in (("config", "ours"), ("config_sft", "theirs"), ("other", "hidden")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.yaml").write_text(f"runner: {{ experiment_name: {folder} }}\n")

    def found(*argv: str) -> object:
        composition, _ = parse_command_line(argv, config_dir=tmp_path / "config", default="ours", description="")
        return composition.data["runner"]["experiment_name"]

    assert found() == "config"
    assert found("--config-name", "theirs") == found("--config-name", "theirs.yaml") == "config_sft"
    for argv in (("--config-name", "hidden"), ("--config-dir", str(tmp_path / "other"), "--config-name", "theirs")):
        with pytest.raises(UnknownName, match="no recipe"):
            found(*argv)
    with pytest.raises(UnknownName, match=r"no recipe 'thiers'\. Did you mean 'theirs'\? Recipes: ours, theirs\."):
        found("--config-name", "thiers")
    with pytest.raises(ConfigError, match=r"^--config-dir: there is no folder '.*nowhere'\. Name one"):
        found("--config-dir", str(tmp_path / "nowhere"))
