"""What `import brim` promises."""

import subprocess
import sys

import pytest

import brim


def test_every_public_name_is_there_and_listed():
    for name in brim.__all__:
        assert getattr(brim, name) is not None
        assert name in dir(brim)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'batchsize'"):
        brim.batchsize  # noqa: B018


@pytest.mark.parametrize(
    "statement", ["import brim", "import brim; brim.find", "import brim; brim.Workload", "import brim; brim.Gpu"]
)
def test_importing_brim_does_not_import_torch(statement):
    code = f"{statement}; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_help_of_the_command_line_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['brim', '--help']\n"
        "from brim.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert brim.__version__ == version("brim")
