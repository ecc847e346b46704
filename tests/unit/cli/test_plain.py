"""What a pipe gets: nothing drawn, nothing cut, no blanks behind a line."""

from rich import box
from rich.table import Table
from rich.text import Text

from brim.cli.plain import PlainConsole


def table(**options):
    made = Table(box=box.SIMPLE_HEAD, title_justify="left", **options)
    made.add_column("name\nand unit")
    made.add_column("size", justify="right")
    made.add_column("why", overflow="fold")
    made.add_row("a", "12", "")
    made.add_row("long [b]", "3", "word " * 60)
    return made


def test_a_table_is_columns_of_words_however_wide(capsys):
    PlainConsole().print(table())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name and unit  size  why"
    assert lines[1] == "a                12"
    assert lines[2].endswith(" ".join(["word"] * 60))
    assert len(lines) == 3


def test_a_title_is_one_line_set_apart_from_what_is_above(capsys):
    console = PlainConsole()
    console.print(Text("first"))
    console.print(table(title="/a/path/that/is/longer/than/the/table/below/it/" * 9))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["first", ""]
    assert lines[2] == "/a/path/that/is/longer/than/the/table/below/it/" * 9
    assert lines[3].startswith("name")


def test_the_catalog_in_a_pipe_is_plain(brim_cli):
    lines = brim_cli("gpus").stdout.splitlines()
    assert " ".join(lines[0].split()) == "name GPU architecture memory capability bandwidth float32 float16"
    assert all(line == line.rstrip() and line for line in lines)
    assert not any("─" in line for line in lines)
