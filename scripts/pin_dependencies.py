"""Pin every dependency, transitive ones too, as uv constraints in pyproject.toml."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "# >>> pins: written by scripts/pin_dependencies.py, do not edit by hand >>>"
END = "# <<< pins <<<"
TABLE = "[tool.uv]\n"
BLOCK = re.compile(rf"^{re.escape(BEGIN)}\n(?:.*\n)*?{re.escape(END)}\n", re.M)
# The narrow alphabet is what keeps URLs, local paths and registry hosts out of pyproject.toml.
REQUIREMENT = re.compile(
    r"^(?P<name>[a-z0-9]+(?:[._-][a-z0-9]+)*)"
    r"==(?P<version>[a-z0-9.!]+)"
    r"(?:\+[a-z0-9.]+)?"
    r"(?P<marker> ; [\w .'()<>=!~-]+)?$"
)
LOCK = ("uv", "lock", "--quiet")
EXPORT = (
    "uv",
    "export",
    "--quiet",
    "--frozen",
    "--all-groups",
    "--all-extras",
    "--no-hashes",
    "--no-emit-project",
    "--no-annotate",
    "--no-header",
)
# Find-links would swap in local builds that lack the CUDA libraries; the other two aim uv at a different project.
DROPPED_VARIABLES = frozenset({"UV_FIND_LINKS", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"})


def normalise(name: str) -> str:
    """Return a package name in the spelling that uv prints."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_export(exported: str) -> list[str]:
    """Return the pins in an export, without local versions such as +cpu."""
    pins: dict[str, None] = {}
    for line in exported.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        found = REQUIREMENT.match(line.rstrip())
        if found is None:
            raise ValueError(f"cannot pin {line!r}: expected 'name==version ; marker'")
        pins[f"{found['name']}=={found['version']}{found['marker'] or ''}"] = None
    if not pins:
        raise ValueError("the export holds no dependency")
    return list(pins)


def read_pins(pyproject: str) -> list[str]:
    """Return the pins that pyproject text holds now."""
    block = BLOCK.search(pyproject)
    if block is None:
        return []
    pins: list[str] = tomllib.loads(block[0])["constraint-dependencies"]
    return pins


def write_pins(pyproject: str, pins: list[str]) -> str:
    """Return pyproject text whose pin block holds exactly these pins; no pins removes the block."""
    rest = BLOCK.sub("", pyproject)
    if rest.count(TABLE) != 1:
        raise ValueError("pyproject.toml needs exactly one [tool.uv] table")
    if "constraint-dependencies" in tomllib.loads(rest)["tool"]["uv"]:
        raise ValueError("[tool.uv] has constraint-dependencies outside of the pin block")
    if not pins:
        return rest
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    block = f"{BEGIN}\nconstraint-dependencies = [\n{lines}]\n{END}\n"
    pinned = rest.replace(TABLE, TABLE + block)
    if tomllib.loads(pinned)["tool"]["uv"]["constraint-dependencies"] != pins:
        raise ValueError("the pins do not survive a round trip through TOML")
    return pinned


def keep_pins(pins: list[str], upgrade: bool, upgrade_packages: list[str]) -> list[str]:
    """Return the old pins that the next resolution must respect."""
    freed = {normalise(name) for name in upgrade_packages}
    return [] if upgrade else [pin for pin in pins if pin.partition("==")[0] not in freed]


def resolve(pyproject: str) -> list[str]:
    """Lock a project from the registry alone and return the pins of its dependencies."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES}
    with tempfile.TemporaryDirectory(prefix="pin-dependencies-") as folder:
        # A copy without the lock file leaves the constraints as the only memory of earlier versions.
        Path(folder, "pyproject.toml").write_text(pyproject, encoding="utf-8")
        python = ("--python", sys.executable)
        subprocess.run([*LOCK, *python], cwd=folder, env=environment, check=True)
        exported = subprocess.run(
            [*EXPORT, *python], cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    return parse_export(exported.stdout)


def main(argv: list[str], path: Path = ROOT / "pyproject.toml") -> int:
    """Resolve the dependencies and rewrite the pin block."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="let every pin move to the newest version that fits")
    parser.add_argument("--upgrade-package", action="append", default=[], metavar="NAME", help="let one pin move")
    args = parser.parse_args(argv)

    pyproject = path.read_text(encoding="utf-8")
    old = read_pins(pyproject)
    kept = keep_pins(old, upgrade=args.upgrade, upgrade_packages=args.upgrade_package)
    try:
        new = resolve(write_pins(pyproject, kept))
    except subprocess.CalledProcessError as error:
        print(f"uv failed ({error.returncode}), pins left as they were; --upgrade lets them move", file=sys.stderr)
        return 1
    path.write_text(write_pins(pyproject, new), encoding="utf-8")
    for pin in sorted(set(old) ^ set(new)):
        print(f"{'+' if pin in new else '-'} {pin}")
    print(f"{len(new)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
