"""A package that is missing is answered with its pip install, wherever it is needed."""

import importlib
import json
import subprocess
import sys

import pytest

from brim.errors import InputError
from brim.extras import missing_extra, needed, require

# How each package is needed, and what is to be said of it.
USES = {
    "import brim.integrations.lightning": "pip install 'lightning>=2.5'",
    "import brim.integrations.lm_eval": "pip install 'lm-eval>=0.4'",
    "import brim.integrations.hydra as hydra; hydra.register()": "pip install 'omegaconf>=2.1'",
    "from brim.integrations.transformers import train; train(None, None)": "pip install 'transformers>=5.0'",
    "from brim.integrations.trainer_probes import gather_alone; gather_alone(None, 2)": "pip install 'accelerate>=1.1'",
    "from brim.integrations.mlflow import MlflowSink; MlflowSink('x', experiment='e')": "pip install '.[mlflow]'",
    "from brim.integrations.tensorboard import TensorBoardSink; TensorBoardSink('x')": "pip install '.[tensorboard]'",
    "from brim.sweeping.ray_engine import _import_ray; _import_ray()": "pip install '.[ray]'",
}
# Hides the packages, which are all installed here, and prints what each use raises.
WITHOUT = """
import importlib.metadata, json, sys

def version(package):
    raise importlib.metadata.PackageNotFoundError(package)

importlib.metadata.version = version
for name in ("lightning", "lm_eval", "omegaconf", "transformers", "accelerate", "mlflow", "tensorboard", "ray"):
    sys.modules[name] = None
said = {}
for use in json.loads(sys.argv[1]):
    try:
        exec(use)
    except ImportError as error:
        said[use] = [type(error).__name__, str(error)]
print(json.dumps(said))
"""


def test_every_package_that_is_missing_is_named_with_its_pip_install():
    command = [sys.executable, "-c", WITHOUT, json.dumps(list(USES))]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert {use: said[use][1].rpartition("with: ")[2] for use in said} == USES
    assert {kind for kind, _ in said.values()} == {"MissingPackageError"}


def test_what_a_framework_lacks_itself_is_its_own_to_say():
    for part in ("a_part_of_rich", "rich.no_such_part"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{part}'"), needed("rich", "1.0"):
            importlib.import_module(part)


def test_a_missing_package_is_bad_input_and_an_import_error():
    assert isinstance(missing_extra("ray", "--engine ray"), ImportError)
    with pytest.raises(InputError, match=r"no-such-package is not installed, and 1\.0 or newer is needed"):
        require("no-such-package", "1.0")
