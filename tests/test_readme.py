"""What the documents say can be typed: the README's example is run as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CHINESE = (ROOT / "README.zh-CN.md").read_text()
COMMANDS = (
    "find",
    "predict",
    "phantom",
    "plan make",
    "plan history",
    "plan rollback",
    "report",
    "sweep run",
    "sweep results",
    "watch",
)
# Options of launchers and scripts that the documents speak of.
OF_OTHERS = {"--help", "--bs", "--batch_size", "--nproc-per-node", "--num_processes", "--output_dir"}
OF_OTHERS |= {"--auto_adjust_batch_size", "--no-deps", "--start_from_max_crops"}
OF_OTHERS |= {"--nnodes", "--ntasks-per-node", "--rdzv-backend", "--start-method"}
PAGES = [README, CHINESE, *(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.usefixtures("heap")
def test_the_readmes_example_finds_both_cases(tmp_path: Path):
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "finetune.py").write_text(code)
    run = subprocess.run([sys.executable, "finetune.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    sizes = [int(size) for size in re.findall(r"seq_len=\d+ -> (\d+)", run.stdout)]
    assert len(sizes) == 2
    assert sizes[0] > 2 * sizes[1] > 0


def test_every_option_of_the_documents_exists():
    text = "".join(
        subprocess.run(
            [sys.executable, "-m", "brim", *command.split(), "--help"],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout
        for command in COMMANDS
    )
    ours = re.sub(r" -- .*", "", "\n".join(PAGES))  # what follows is a command of the user's
    options = set(re.findall(r"(?<![\w-])(--[a-z][\w-]+)", ours)) - OF_OTHERS
    assert options
    assert options <= set(re.findall(r"(--[a-z][a-z-]+)", text))


def test_every_link_of_the_documents_leads_to_a_file():
    for page in [ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_chinese_readme_shows_the_same_code_and_figures():
    def shown(text: str) -> tuple[list[str], list[str]]:
        block = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
        return block.findall(text), re.findall(r"\d[\d.,]*%?(?= ?·| /| s\b| MiB)", block.sub("", text))

    assert all(shown(README))
    assert shown(CHINESE) == shown(README)


def test_the_guide_shows_what_its_commands_wrote():
    guide = (ROOT / "docs" / "guide.md").read_text()
    outputs = json.loads((ROOT / "benchmarks" / "results" / "guide.json").read_text())["outputs"]
    blocks = re.findall(r"^```\n\$ (.+)\n((?:.*\n)+?)```$", guide, flags=re.MULTILINE)
    assert {command for command, _ in blocks} == set(outputs)
    for command, block in blocks:
        # What was left out is marked; what is between two marks stands together.
        parts = [part.strip("\n") for part in block.split("…\n")]
        pattern = ".*".join(re.escape(part) for part in parts)
        assert re.search(pattern, outputs[command], flags=re.DOTALL), command
