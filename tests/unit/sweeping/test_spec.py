"""The sweep file: what it may say, and what is refused with a way out."""

from pathlib import Path

import pytest

from brim.errors import InputError
from brim.sweeping.command import check_runnable, fill_in, read_command
from brim.sweeping.file import parse_yaml
from brim.sweeping.plan import make_plan
from brim.sweeping.spec import read_spec

NINE = ["r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_b", "swin3d_s", "swin3d_t"]
BATCHES = [128, 64, 128, 32, 16, 16, 16, 16, 16]
ISSUE = """
command: python train.py --config {config}
base: base.yaml
sweep:
  product:
    hp.learning_rate: [0.001, 0.01]
  zip:
    model_batch:
      model.type:    [r3d_18, mc3_18, r2plus1d_18]
      hp.batch_size: [128, 64, 128]
  exclude: [{model.type: mc3_18, hp.learning_rate: 0.01}]
  include: [{model.type: s3d, hp.batch_size: 32, hp.learning_rate: 0.001}]
  max_experiments: 50
"""
BASE = "model: {type: s3d, depth: 18}\nhp: {batch_size: 8, learning_rate: 0.1, accumulation: 1}\n"


def sweep_of(**sweep):
    return {"function": "train.py:train", "sweep": sweep}


def configs(document):
    return list(make_plan(read_spec(document)).grid)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "grid.yaml").write_text(ISSUE)
    return tmp_path


def test_the_documented_file_has_the_documented_trials(folder):
    spec = read_spec(folder / "grid.yaml")
    plan = make_plan(spec)
    assert [tuple(trial.config.values()) for trial in plan] == [
        (0.001, "r3d_18", 128),
        (0.001, "mc3_18", 64),
        (0.001, "r2plus1d_18", 128),
        (0.01, "r3d_18", 128),
        (0.01, "r2plus1d_18", 128),
        (0.001, "s3d", 32),
    ]
    assert plan.limit == 50
    trial = next(iter(plan))
    assert trial.resolved == {
        "model": {"type": "r3d_18", "depth": 18},
        "hp": {"batch_size": 128, "learning_rate": 0.001, "accumulation": 1},
    }


def test_nine_models_with_their_batches_times_two_rates_are_18_trials():
    document = sweep_of(
        product={"hp.learning_rate": [0.001, 0.01]}, zip={"pair": {"model.type": NINE, "hp.batch_size": BATCHES}}
    )
    assert len(configs(document)) == 18


def test_groups_multiply_with_each_other():
    document = sweep_of(zip={"one": {"a": [1, 2], "b": [3, 4]}, "two": {"c": [5, 6, 7], "d": [8, 9, 10]}})
    assert len(configs(document)) == 6


def test_a_value_without_brackets_is_shared_by_its_group():
    document = sweep_of(zip={"one": {"a": [1, 2, 3], "b": 7}})
    assert [config["b"] for config in configs(document)] == [7, 7, 7]


def test_a_range_is_written_with_two_dots():
    assert [config["max_crops"] for config in configs(sweep_of(product={"max_crops": "2..13"}))] == list(range(2, 14))


def test_an_inclusion_takes_what_it_does_not_name_from_the_base():
    document = {**sweep_of(product={"a": [1, 2], "b": [3]}, include=[{"a": 5}, {"a": 1}]), "base": {"a": 0, "b": 3}}
    assert configs(document) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}, {"a": 5, "b": 3}]


def test_numbers_may_be_written_in_scientific_notation():
    assert parse_yaml("lr: [1e-3, 5E-4, 1e3, 0.1]", "text") == {"lr": [0.001, 0.0005, 1000.0, 0.1]}


def legacy(**grid):
    return {"function": "train.py:train", "grid_search": {"grid": grid}}


def test_the_older_form_pairs_models_with_their_batches_and_says_so():
    spec = read_spec(legacy(**{"model.type": NINE, "hp.batch_size": BATCHES, "hp.learning_rate": [0.001]}))
    assert spec.grid.guess == "paired: 9 trials; product would be 81; say `zip` or `product` to silence this"
    pairs = [(config["model.type"], config["hp.batch_size"]) for config in make_plan(spec).grid]
    assert pairs == list(zip(NINE, BATCHES, strict=True))


def test_the_older_form_counts_its_other_keys_in_both_counts():
    spec = read_spec(legacy(**{"model.type": NINE, "hp.batch_size": BATCHES, "hp.learning_rate": [0.001, 0.01]}))
    assert spec.grid.guess.startswith("paired: 18 trials; product would be 162;")


def test_a_file_of_the_older_form_is_read_as_it_is():
    grid = {"model.type": ["a", "b"], "hp.batch_size": [8, 4]}
    old = {
        "data": {"path": "ucf101"},
        "hp": {"batch_size": 1, "epochs": 3},
        "grid_search": {"grid": grid, "enable": True},
    }
    spec = read_spec(old)
    assert spec.grid.notes == ("grid_search.enable is not used.",)
    (first, _) = make_plan(spec)
    assert first.resolved == {"data": {"path": "ucf101"}, "hp": {"batch_size": 8, "epochs": 3}, "model": {"type": "a"}}
    assert read_spec(old, command="prog {config}").command == ("prog", "{config}")


@pytest.mark.parametrize(
    ("models", "batches", "num_trials"),
    [(["a", "b"], [128], 2), (["a", "b"], 128, 2), (["a", "b"], [64, 128, 256], 6), (["a"], [32], 1)],
)
def test_the_older_form_shares_single_values_and_multiplies_other_lengths(models, batches, num_trials):
    spec = read_spec(legacy(**{"model.type": models, "hp.batch_size": batches}))
    assert (spec.grid.guess is None) is (num_trials != 6)
    assert len(make_plan(spec).grid) == num_trials


def test_a_batch_size_that_was_forgotten_is_asked_about():
    spec = read_spec(legacy(**{"model.type": NINE, "hp.batch_size": BATCHES[:8]}))
    assert spec.grid.guess.startswith("9 models and 8 batch sizes make no pairs, so every model is run with every")
    assert "36 trials: is one forgotten?" in spec.grid.guess


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (sweep_of(zip={"g": {"a": [1, 2, 3], "b": [1, 2]}}), "The lists of zip.g differ in length: a has 3, b has 2"),
        (sweep_of(zip={"g": {"a": [1, 2, 3], "b": [1]}}), "one value for all is written without brackets"),
        (sweep_of(product={"a": [1]}, zip={"g": {"a": [1]}}), "a is in two dimensions, a and g"),
        (sweep_of(zip={"g": {"a": [1]}, "h": {"a": [2]}}), "a is in two dimensions, g and h"),
        (sweep_of(product={"a": []}), "a has an empty list"),
        (sweep_of(zip={"g": {}}), "zip.g is empty"),
        (sweep_of(product={"a": [1], "a.b": [2]}), "a cannot be both a value and a branch"),
        (sweep_of(product={"hp.batch_size": [8, 0]}), "hp.batch_size: 0 is no batch size"),
        (sweep_of(product={"batch_size": ["abc"]}), "batch_size: 'abc' is no batch size"),
        (sweep_of(product={"a": "5..2"}), r"the range 5\.\.2 is empty"),
        (sweep_of(product=[1]), "product must be a mapping"),
        (sweep_of(product={"a": [1]}, exclude={"a": 1}), r"exclude must be a list of mappings. Write exclude: \[\{key"),
        (sweep_of(product={"a": [1]}, exclude=[{"b": 1}]), "must name keys that are swept: a"),
        (sweep_of(product={"a": [1]}, exclude=[{"a": 1}]), "The sweep has no trials: 1 a; − 1 excluded = 0 trials"),
        (sweep_of(product={"a": [float("nan")]}), "Use a finite one"),
        (sweep_of(product={"a": [1]}, max_experiments=0), "max_experiments is 0"),
        (sweep_of(prodcut={"a": [1]}), "unknown name 'prodcut'. Did you mean product?"),
        (sweep_of(), "The sweep is empty"),
        ({**sweep_of(product={"a": [1]}), "command": "x {config}"}, "has both `command:` and `function:`"),
        ({"function": "f.py:f"}, "A sweep needs"),
        ({**sweep_of(product={"a": [1]}), "comand": "x"}, "unknown name 'comand'. Did you mean command?"),
        ({**sweep_of(product={"a": [1]}), "base": {"b": 1}}, "The base has no a"),
        ({**sweep_of(product={"a": [1]}), "base": 3}, "base must be a file or a mapping"),
        ({**sweep_of(product={"a": [1]}), "resources": {"gpu": 1}}, "unknown name 'gpu'. Did you mean gpus?"),
        ({**sweep_of(product={"a": [1]}), "resources": {"cpus": 0}}, "resources.cpus is 0"),
        ({**sweep_of(product={"a": [1]}), "metric": {"name": "x", "goal": "up"}}, "metric.goal is 'up'"),
        ({**sweep_of(product={"a": [1]}), "on_oom": "shrink"}, "on_oom is 'shrink'"),
        ({**sweep_of(product={"a": [1]}), "on_oom": {"keep_effective": "a"}}, "needs one of reduce and skip_larger"),
        (
            {**sweep_of(product={"a": [1]}), "base": {"a": 1}, "on_oom": {"reduce": "b"}},
            "The base has no b",
        ),
        ({**sweep_of(product={"hp.batch_size": "auto"})}, "needs a workload to find it with"),
        (
            {**sweep_of(product={"hp.batch_size": [{"auto": {"caps": 3}}]})},
            "unknown name 'caps'. Did you mean cap?",
        ),
        ({"command": "python train.py", "sweep": {"product": {"a": [1]}}}, "has no {config}"),
        ({"command": "python 'train.py {config}", "sweep": {"product": {"a": [1]}}}, "cannot be split into words"),
        ({"command": 7, "sweep": {"product": {"a": [1]}}}, "command is 7"),
        ({"function": "train", "sweep": {"product": {"a": [1]}}}, "Use package.module:name"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_way_out(document, message):
    with pytest.raises(InputError, match=message):
        make_plan(read_spec(document)).grid.count  # noqa: B018


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "must be a mapping at its top, but is a list"),
        ("just text", "must be a mapping at its top, but is a str"),
        ("", "must be a mapping at its top, but is empty"),
        ("a: [1, 2", "is not YAML"),
        ("a: !!python/object/apply:os.system ['true']", "Tags such as !!python/object are not loaded"),
        ("a: !!python/name:os.system", "Tags such as !!python/object are not loaded"),
        ("a: 1\nb: 2\na: 3\n", "a is written twice, in lines 1 and 3"),
    ],
)
def test_yaml_that_is_no_sweep_is_refused(tmp_path, text, message):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_spec(tmp_path / "grid.yaml")


NESTED = "\n".join(
    ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    + [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 9)]
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NESTED, "more than 1,000,000 values once its aliases are written out"),
        ("a: " + "[" * 60 + "]" * 60, "nested too deeply in line 1. Use at most 50 levels"),
        ("a: " + "[" * 10_000 + "]" * 10_000, "nested too deeply. Use at most 50 levels"),
        ("a:\n  b: &b [1, *b]", "a value in line 2 that holds itself"),
    ],
)
def test_a_file_that_grows_beyond_measure_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_yaml(text, "text")


def test_a_range_that_nobody_waits_for_is_refused():
    document = {"command": "python train.py --config {config}", "sweep": {"product": {"a": "0..99999999999999999999"}}}
    with pytest.raises(InputError, match=r"the range 0\.\.9+ is too long"):
        read_spec(document)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_spec(tmp_path / "grid.yaml")


def test_dates_are_refused_because_no_two_readers_agree_on_them(tmp_path):
    (tmp_path / "grid.yaml").write_text("function: f.py:f\nsweep: {product: {day: [2026-11-01]}}\n")
    with pytest.raises(InputError, match=r"is a date\. Write it in quotes"):
        read_spec(tmp_path / "grid.yaml")


def test_a_program_a_script_and_a_folder_must_be_there(tmp_path):
    (tmp_path / "train.py").touch()
    check_runnable(("python", "train.py", "{config}"), None, tmp_path)
    check_runnable(("python", "-m", "train", "{config}"), None, tmp_path)
    check_runnable(None, "train.py:train", tmp_path)
    with pytest.raises(InputError, match=f"There is no file tarin.py to run. Paths are relative to {tmp_path}"):
        check_runnable(("python", "-u", "tarin.py", "{config}"), None, tmp_path)
    with pytest.raises(InputError, match=r"There is no file other\.py"):
        check_runnable(None, "other.py:train", tmp_path)
    with pytest.raises(InputError, match="There is no program 'no-such-program'"):
        check_runnable(("no-such-program", "{config}"), None, tmp_path)
    with pytest.raises(InputError, match=r"says nothing to run\. Write `command"):
        check_runnable(None, None, tmp_path)
    with pytest.raises(InputError, match="There is no folder"):
        check_runnable(None, "train.py:train", tmp_path / "elsewhere")


def test_a_command_may_be_a_list_and_other_braces_stay():
    command = read_command({"command": ["prog", "--config={config}", '{"a": 1}']})
    assert fill_in(command, Path("/d"), "id") == ("prog", "--config=/d/config.yaml", '{"a": 1}')
