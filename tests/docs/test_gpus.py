"""What the page about GPUs says to type where there is none is typed here, and answers as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "gpus.md"
COMMAND = re.compile(r"^\$ (.*<<'END'\n(?:.*\n)*?END\n|.*\n)((?:(?!\$ ).*\n)*)", re.M)


def test_gpus_that_are_none_are_lent_to_shells_and_to_python(tmp_path: Path) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"^```python\n# train\.py\n(.*?)^```", page, re.S | re.M)
    (block,) = re.findall(r"```console\n(.*?)```", page.partition("## Try it without a GPU")[2], re.S)
    commands = COMMAND.findall(block)
    assert len(commands) == 6
    (tmp_path / "train.py").write_text(program)
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
    done = subprocess.run(
        ["sh", "-e", "-c", "".join(command for command, _ in commands)],
        cwd=tmp_path,
        env={**environment, "PATH": programs, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(answer for _, answer in commands)
