"""The README's example is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_readmes_example_finds_both_cases(tmp_path: Path):
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "finetune.py").write_text(code)
    run = subprocess.run([sys.executable, "finetune.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    sizes = [int(size) for size in re.findall(r"seq_len=\d+ -> (\d+)", run.stdout)]
    assert len(sizes) == 2
    assert sizes[0] > 2 * sizes[1] > 0


def test_every_option_of_the_readme_exists():
    text = "".join(
        subprocess.run(
            [sys.executable, "-m", "brim", *command.split(), "--help"],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout
        for command in ("find", "plan", "predict", "report", "sweep", "sweep results", "watch")
    )
    options = set(re.findall(r"(--[a-z][a-z-]+)", README)) - {"--help", "--config"}  # the latter is the user's own
    assert options
    assert options <= set(re.findall(r"(--[a-z][a-z-]+)", text))
