"""The long forms of tests: `python tests/long.py kills core 1000` is `main("core", 1000)` of tests/*/test_kills.py.

It says at its end how long it took. Without a name it lists the tests that have one, each with its own first lines.
"""

import ast
import importlib
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def forms() -> dict[str, Path]:
    """The tests that have a `main`, by name."""
    tests = {path.stem.removeprefix("test_"): path for path in sorted(HERE.rglob("test_*.py"))}
    return {name: path for name, path in tests.items() if "\ndef main(" in path.read_text()}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or [""]
    if name not in forms():
        for form, path in forms().items():
            summary = ast.get_docstring(ast.parse(path.read_text())) or ""
            print(f"{form}\n    " + summary.replace("\n", "\n    ").rstrip())
        sys.exit(2 if name else 0)
    folders = [str(HERE / "support"), str(forms()[name].parent)]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    main = importlib.import_module(forms()[name].stem).main
    began = time.monotonic()
    failed = main(*(int(text) if text.isdigit() else text for text in arguments))
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(failed)
