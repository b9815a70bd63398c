"""A whole reader of the checkpoint format in one file that needs only numpy; copy it anywhere.

    python reader.py FOLDER            # a step-... folder: check every byte, list the tensors

`read(folder)` returns (step, state, metadata) with numpy arrays; bfloat16 comes back as its raw
uint16 bits, float8 as uint8. It shares no code with the engine, which tests compare it with.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
_LANES = 4096
_RAW = {"bfloat16": "uint16", "bool": "bool", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class DamagedError(Exception):
    """A byte is not what was written."""


def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.astype(np.uint32)


_TABLE = _byte_table()


def _times(matrix: Words, values: Words) -> Words:
    """Multiply 32 x 32 bit matrices (columns as words) with vectors of bits."""
    result = np.zeros_like(values)
    for bit in range(32):
        result ^= np.where((values >> np.uint32(bit)) & 1, matrix[bit], np.uint32(0))
    return result


def _zeros(n_bytes: int) -> Words:
    """Return the matrix that appends `n_bytes` zero bytes to a CRC register."""
    power = np.uint32(1) << np.arange(32, dtype=np.uint32)
    step = _TABLE[power & 0xFF] ^ (power >> np.uint32(8))
    result = power
    while n_bytes:
        if n_bytes & 1:
            result = _times(step, result)
        step = _times(step, step)
        n_bytes >>= 1
    return result


def crc32c(data: Bytes) -> int:
    """Return the CRC-32C: many lanes at once, then joined as if they had come one by one."""
    lanes = _LANES if len(data) >= _LANES * 16 else 1
    width = len(data) // lanes
    body = np.ascontiguousarray(data[: lanes * width].reshape(lanes, width).T)
    crc = np.zeros(lanes, dtype=np.uint32)
    crc[0] = 0xFFFFFFFF
    for row in body:
        crc = _TABLE[(crc ^ row) & 0xFF] ^ (crc >> np.uint32(8))
    while len(crc) > 1:
        crc = _times(_zeros(width), crc[0::2]) ^ crc[1::2]
        width *= 2
    value = int(crc[0])
    for byte in data[lanes * (len(data) // lanes) :].tolist():
        value = int(_TABLE[(value ^ byte) & 0xFF]) ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest, checked against its own checksum (its last 24 bytes)."""
    raw = (folder / "manifest.json").read_bytes()
    inner, tail = raw[:-24], raw[-24:]
    crc = crc32c(np.frombuffer(inner, dtype=np.uint8))
    if tail != b',\n"crc32c": "%08x"}\n' % crc:
        raise DamagedError(f"{folder / 'manifest.json'} is damaged")
    body: dict[str, Any] = json.loads(inner + b"}")
    if (body["format"], body["version"]) != ("surefoot-checkpoint", 1):
        raise DamagedError(f"{folder}: format {body['format']} version {body['version']}")
    return body


def read_file(folder: Path, file: dict[str, Any], chunk_bytes: int) -> Bytes:
    """Return one data file, every chunk checked."""
    parts = sorted(folder.glob(file["name"] + ".[0-9]*")) if "part_bytes" in file else []
    names = parts or [folder / file["name"]]
    data = np.concatenate([np.fromfile(name, dtype=np.uint8) for name in names])
    if len(data) != file["bytes"]:
        raise DamagedError(f"{folder / file['name']} has {len(data)} bytes, not {file['bytes']}")
    for number, expected in enumerate(file["crc32c"]):
        if crc32c(data[number * chunk_bytes : (number + 1) * chunk_bytes]) != int(expected, 16):
            raise DamagedError(f"{folder / file['name']}: chunk {number} is damaged")
    return data


def _tensor(entry: dict[str, Any], files: list[Bytes]) -> NDArray[Any]:
    dtype = np.dtype(_RAW.get(entry["dtype"], entry["dtype"]))
    whole = np.empty(entry["shape"], dtype=dtype)
    for file, offset, start, shape in entry["pieces"]:
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        part = files[file][offset : offset + n_bytes].view(dtype).reshape(shape)
        whole[tuple(slice(a, a + n) for a, n in zip(start, shape))] = part
    return whole


def _restore(node: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Any:
    ((kind, body),) = node.items()
    match kind:
        case "dict":
            return {key: _restore(value, tensors) for key, value in body}
        case "list":
            return [_restore(value, tensors) for value in body]
        case "tuple":
            return tuple(_restore(value, tensors) for value in body)
        case "tensor" | "array":
            return tensors[body]
        case "float":
            return float(body)
        case "bytes":
            return base64.b64decode(body)
    return body


def read(folder: Path) -> tuple[int, Any, dict[str, Any]]:
    """Return (step, state, metadata) of one checkpoint folder, every byte checked."""
    manifest = read_manifest(folder)
    files = [read_file(folder, file, manifest["chunk_bytes"]) for file in manifest["files"]]
    tensors = {name: _tensor(entry, files) for name, entry in manifest["tensors"].items()}
    return manifest["step"], _restore(manifest["tree"], tensors), manifest["metadata"]


if __name__ == "__main__":
    for name, entry in read_manifest(Path(sys.argv[1]))["tensors"].items():
        print(name, entry["dtype"], entry["shape"])
    print("every byte is good: step", read(Path(sys.argv[1]))[0])
