"""Files that are either whole or not there: atomic writes, hashes, unique folders."""

import hashlib
import json
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

_SEAL = b"SLMLAB-SHA256:"
_DIGEST_SIZE = hashlib.sha256().digest_size


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: temporary file, flush, rename; the old file stays until the new one is safe."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, readable by people."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def write_yaml(path: Path, data: Any) -> None:
    """Write YAML atomically, keys in their own order."""
    write_text(path, dump_yaml(data))


def dump_yaml(data: Any) -> str:
    """YAML text, keys in their own order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, and floats that every YAML reader takes as floats."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    flow = all(not isinstance(item, (list, dict)) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


def _represent_float(dumper: yaml.SafeDumper, data: float) -> yaml.ScalarNode:
    text = yaml.SafeDumper.represent_float(dumper, data).value
    # 1e-05 without a dot is a string to YAML 1.1
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e", 1)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(tuple, lambda dumper, data: _represent_list(dumper, list(data)))
_Dumper.add_representer(float, _represent_float)


def seal(payload: bytes) -> bytes:
    """Append a hash to a payload; a torch file stays readable by torch.load, whose zip reader skips the tail."""
    return payload + _SEAL + hashlib.sha256(payload).digest()


def unseal(data: bytes) -> bytes | None:
    """The payload of sealed bytes, or None when a single bit differs from what was written."""
    cut = len(data) - _DIGEST_SIZE - len(_SEAL)
    if cut < 0 or data[cut : cut + len(_SEAL)] != _SEAL:
        return None
    payload = data[:cut]
    return payload if hashlib.sha256(payload).digest() == data[-_DIGEST_SIZE:] else None


def create_run_folder(data_dir: Path, name: str) -> Path:
    """Make `data_dir/name_YYYY_MM_DD_HHMMSS`; runs started in the same second get folders of their own."""
    stamp = datetime.now().strftime("%Y_%m_%d_%H%M%S")
    data_dir.mkdir(parents=True, exist_ok=True)
    for attempt in range(10_000):
        folder = data_dir / (f"{name}_{stamp}" if attempt == 0 else f"{name}_{stamp}_{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"too many runs named {name}_{stamp} in {data_dir}")


def remove_orphans(folder: Path) -> None:
    """Delete temporary files that a killed write left behind."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
