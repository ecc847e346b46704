"""Commands with places."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.cases import Case
from brim.errors import InputError
from brim.probing.scripts import Command


@given(st.integers(1, 2**20), st.text(min_size=1))
def test_only_places_are_filled_in(batch, word):
    words = Command(("run", word, "--bs={batch}")).fill_in(Case({"px": 8}), batch)
    assert words[2] == f"--bs={batch}"
    assert words[1] == word or "{px}" in word or "{batch}" in word


def test_braces_that_are_no_place_stay():
    command = Command(("run", '{"lr": 1}', "${HOME}", "{batch}"))
    assert command.fill_in(Case(), 4) == ["run", '{"lr": 1}', "${HOME}", "4"]


@pytest.mark.parametrize(
    ("words", "num_ranks"),
    [
        (("torchrun", "--nproc_per_node", "4", "{batch}"), 4),
        (("accelerate", "launch", "--num_processes=2", "{batch}"), 2),
        (("torchrun", "--nproc-per-node=gpu", "{batch}"), 1),
        (("python", "{batch}"), 1),
    ],
)
def test_a_launcher_says_how_many_ranks_share_the_memory(words, num_ranks):
    assert Command(words).num_ranks == num_ranks


def test_a_case_may_not_be_called_batch():
    with pytest.raises(InputError, match="cannot be called 'batch'"):
        Command(("python", "{batch}")).check([Case({"batch": 2})])


def test_folders_with_something_in_them_are_named(tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "weights").touch()
    words = (
        "train",
        "{batch}",
        "--output_dir",
        str(full),
        f"--save-path={full}",
        f"--ckpt_dir={empty}",
        "--data",
        str(full),
    )
    assert Command(words).overwritten() == [str(full), str(full)]


def test_files_that_a_command_names_are_sources(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("lr: 1")
    assert list(Command(("train", f"--config={config}", "{batch}")).sources()) == [str(config)]
