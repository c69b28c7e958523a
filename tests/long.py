"""The long forms of tests: `python tests/long.py kills core 100000` runs tests/*/test_kills.py as a program.

Without a name it lists the tests that have one, each with its own first lines.
"""

import ast
import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def forms() -> dict[str, Path]:
    """By name, the tests that can be run as programs."""
    tests = {path.stem.removeprefix("test_"): path for path in sorted(HERE.rglob("test_*.py"))}
    return {name: path for name, path in tests.items() if '\nif __name__ == "__main__"' in path.read_text()}


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in forms():
        for form, path in forms().items():
            summary = ast.get_docstring(ast.parse(path.read_text())) or ""
            sys.stdout.write(f"{form}\n    " + summary.replace("\n", "\n    ").rstrip() + "\n")
        sys.exit(2 if name else 0)
    support = str(HERE / "support")
    sys.path.insert(0, support)
    os.environ["PYTHONPATH"] = os.pathsep.join([support, *filter(None, [os.environ.get("PYTHONPATH")])])
    path = str(forms()[name])
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
