"""The object store tier beside raw obstore, for benchmarks/checkpoint.py."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import obstore
import torch

from _common import Bars, table
from surefoot.checkpoint import Checkpointer
from surefoot.checkpoint.objects import _AT_ONCE, PART_BYTES, ObjectStorage


def report_store(bars: Bars, url: str, gb: float, rounds: int) -> None:
    """Compare ours with raw obstore on the same store: the same parts, as many at once."""
    state = {f"t{i}": torch.randn(int(gb * 1e9 / 4 / 16)) for i in range(16)}
    into = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    part = os.urandom(PART_BYTES)
    rows = []
    with Checkpointer(f"{url}/ours", keep=1) as checkpointer:
        store = ObjectStorage(f"{url}/raw")._store
        for step in range(rounds + 1):
            saved = checkpointer.save(step, state, blocking=True).saved
            assert saved is not None
            began = time.perf_counter()
            checkpointer.load(into)
            load = time.perf_counter() - began
            count = max(1, round(saved.n_bytes / PART_BYTES))
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                began = time.perf_counter()
                list(pool.map(lambda n: obstore.put(store, str(n), part), range(count)))
                put = time.perf_counter() - began
                began = time.perf_counter()
                list(pool.map(lambda n: len(obstore.get(store, str(n)).bytes()), range(count)))
                get = time.perf_counter() - began
            scale = saved.n_bytes / (count * PART_BYTES)
            if step:
                row = {"save": saved.persist_s, "put": put * scale, "load": load}
                rows.append({**row, "get": get * scale})
    print("\nobject store, seconds (ours / raw obstore)")
    table(list(rows[0]), [list(row.values()) for row in rows])
    bars.rows["store"] = rows
    put = statistics.median(r["put"] / r["save"] for r in rows)
    get = statistics.median(r["get"] / r["load"] for r in rows)
    bars.at_least("store: put, ours / raw", put, 0.9)
    bars.at_least("store: get, ours / raw", get, 0.9)
