"""Other people's formats: safetensors in and out, DCP in and out; no import ever runs code."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from surefoot.checkpoint import tree as trees
from surefoot.errors import CheckpointError, ConfigError, CorruptError

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_LIMIT_BYTES = 100 << 20


def import_checkpoint(path: Path) -> Any:
    """Return the state in a safetensors file, a Hugging Face folder of them, or a DCP folder.

    Raises CorruptError for damaged files, CheckpointError for entries that only pickle can load,
    ConfigError for anything else.
    """
    if path.is_dir() and (path / ".metadata").exists():
        return _import_dcp(path)
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
    else:
        files = [path] if path.suffix == ".safetensors" else []
    if not files:
        raise ConfigError(
            f"{path} is neither a .safetensors file, a folder of them, nor a DCP checkpoint",
            hint="pickled files (.pt, .bin) are not read: convert them where you trust them",
        )
    state: dict[str, torch.Tensor] = {}
    for file in files:
        state.update(read_safetensors(file))
    return state


# -- safetensors -----------------------------------------------------------------------------------


def write_safetensors(state: Any, path: Path, *, only: str = "") -> int:
    """Write the tensors of a state under their dotted paths; returns how many.

    `only`: just what lies under this key ("model"), and without it in the names, as Hugging Face
    loaders want. Scalars and structure are not part of that format and are left out.
    """
    leaves = trees.flatten(_under(state, only))[1]
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in leaves.items():
        if tensor.dtype not in _NAMES:
            raise CheckpointError(f"safetensors has no dtype for {name}: {tensor.dtype}")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in leaves.values():
            raw: Any = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(memoryview(raw))
    return len(leaves)


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of one file; raises CorruptError when header and length disagree."""
    raw = bytearray(path.read_bytes())
    try:
        n_bytes = struct.unpack("<Q", raw[:8])[0]
        if not 0 < n_bytes <= min(_HEADER_LIMIT_BYTES, len(raw) - 8):
            raise ValueError("header length")
        header = json.loads(raw[8 : 8 + n_bytes])
        header.pop("__metadata__", None)
        body = torch.frombuffer(raw, dtype=torch.uint8)[8 + n_bytes :]
        return {name: _tensor(body, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, struct.error) as error:
        raise CorruptError(f"{path} is not a whole safetensors file: {error!r}") from error


def _tensor(body: torch.Tensor, entry: Mapping[str, Any]) -> torch.Tensor:
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= body.numel():
        raise ValueError("data_offsets")
    flat = body[begin:end].clone()
    return flat.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])


def _under(state: Any, key: str) -> Any:
    for part in filter(None, key.split(".")):
        if not isinstance(state, Mapping) or part not in state:
            raise ConfigError(f"the checkpoint has nothing under {key!r}")
        state = state[part]
    return state


# -- DCP -------------------------------------------------------------------------------------------


def write_dcp(state: Any, path: Path) -> None:
    """Write a state as a DCP checkpoint (whose own metadata file is a pickle)."""
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(state), checkpoint_id=path, no_dist=True)


_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    (f"{_DCP}.metadata", name)
    for name in (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "BytesStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )
} | {
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
    ("collections", "OrderedDict"),
}  # fmt: skip


class _DataOnly(pickle.Unpickler):
    """Reads DCP's metadata: its own value classes and dtypes, and nothing that can act."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise CheckpointError(
            f"the DCP metadata asks for {module}.{name}, which is not plain data: not loaded"
        )


def _import_dcp(path: Path) -> Any:
    try:
        metadata = _DataOnly(io.BytesIO((path / ".metadata").read_bytes())).load()
        flat = {name: _dcp_entry(path, metadata, name) for name in metadata.state_dict_metadata}
        return _unflatten(flat, metadata.planner_data or {})
    except (pickle.UnpicklingError, EOFError, KeyError, AttributeError, ValueError) as error:
        raise CorruptError(f"{path} is not a whole DCP checkpoint: {error!r}") from error


def _dcp_entry(path: Path, metadata: Any, name: str) -> Any:
    entry = metadata.state_dict_metadata[name]
    stored = {i: info for i, info in metadata.storage_data.items() if i.fqn == name}
    if not hasattr(entry, "chunks"):
        return _dcp_read(path, next(iter(stored.values())))
    whole = torch.empty(entry.size, dtype=entry.properties.dtype)
    filled = 0
    for index, info in stored.items():
        part = _dcp_read(path, info)
        box = whole
        for axis, start in enumerate(index.offset or ()):
            box = box.narrow(axis, start, part.shape[axis])
        box.copy_(part)
        filled += part.numel()
    if filled < whole.numel():
        raise CorruptError(f"{path}: tensor {name} has {filled} of {whole.numel()} values")
    return whole


def _dcp_read(path: Path, info: Any) -> Any:
    if Path(info.relative_path).name != str(info.relative_path):
        raise CheckpointError(f"{path}: a stored file name leaves the folder")
    with (path / info.relative_path).open("rb") as file:
        file.seek(info.offset)
        raw = file.read(info.length)
    try:
        return torch.load(io.BytesIO(raw), weights_only=True, map_location="cpu")
    except Exception as error:
        raise CorruptError(f"{path / info.relative_path} cannot be read: {error}") from error


def _unflatten(flat: Mapping[str, Any], paths: Mapping[str, tuple[Any, ...]]) -> Any:
    """Nest again; DCP writes list positions as numbers and every mapping's keys as text."""
    nested: dict[Any, Any] = {}
    for name, value in flat.items():
        *parents, last = paths.get(name, (name,))
        node = nested
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return _with_lists(nested)


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    inner = {key: _with_lists(value) for key, value in node.items()}
    if inner and all(isinstance(key, int) for key in inner):
        return [inner[key] for key in sorted(inner)]
    return inner
