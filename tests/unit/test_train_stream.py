"""Streams that nobody can index: shared by rows, resumed where they were, once each."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from surefoot.errors import ConfigError
from surefoot.train import Session
from surefoot.train.sampler import Cut
from surefoot.train.stream import StreamFeed, rows_of, take_rows

SAMPLES, BATCH = 23, 4


class Plain(IterableDataset[dict[str, Any]]):
    """Counts what is read; knows no place."""

    def __init__(self) -> None:
        self.epoch = 0
        self.read = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in range(SAMPLES):
            self.read += 1
            yield {"id": 100 * self.epoch + i, "x": torch.full((2,), i / SAMPLES), "s": f"t{i}"}


class Placed(Plain):
    """Knows its place, as Hugging Face's streaming data sets do."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < SAMPLES:
            self.read += 1
            self.at += 1
            i = self.at - 1
            yield {"id": 100 * self.epoch + i, "x": torch.full((2,), i / SAMPLES), "s": f"t{i}"}
        self.at = 0


def hugging_face(buffer: int = 0) -> Any:
    datasets = pytest.importorskip("datasets")
    made = datasets.IterableDataset.from_generator(
        lambda: ({"id": i, "x": [i / SAMPLES, 1.0], "s": f"t{i}"} for i in range(SAMPLES))
    )
    if buffer:
        made = made.shuffle(seed=3, buffer_size=buffer)
    return made.with_format("torch")


def torchdata_loader() -> Any:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return stateful.StatefulDataLoader(Placed(), batch_size=BATCH, num_workers=2)


LOADERS = {
    "plain": lambda: DataLoader(Plain(), batch_size=BATCH),
    "workers": lambda: DataLoader(Plain(), batch_size=BATCH, num_workers=1),
    "placed": lambda: DataLoader(Placed(), batch_size=BATCH),
    "hugging face": lambda: DataLoader(hugging_face(), batch_size=BATCH),
    "hugging face, shuffled": lambda: DataLoader(hugging_face(8), batch_size=BATCH),
    "torchdata": torchdata_loader,
}


def run(loader: Any, folder: Path, total: int) -> tuple[list[list[int]], dict[str, Any]]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    with Session(model=model, optimizer=optimizer, dataloader=loader, checkpoint=folder) as session:
        for _, batch in session.steps(total=total):
            model(batch["x"]).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append([int(i) for i in batch["id"]])
            assert len(batch["s"]) == len(seen[-1])
    return seen, model.state_dict()


@pytest.mark.parametrize("name", LOADERS)
def test_resumed_stream_goes_on_bitwise_where_it_was(tmp_path: Path, name: str) -> None:
    whole, weights = run(LOADERS[name](), tmp_path / "whole", 15)
    pieces: list[list[int]] = []
    for total in (1, 4, 6, 7, 13, 15):  # 6 batches an epoch
        seen, resumed = run(LOADERS[name](), tmp_path / "pieces", total)
        pieces += seen
    assert pieces == whole
    assert all(torch.equal(resumed[k], weights[k]) for k in weights)
    if name != "torchdata":  # whose two workers each read the whole set here
        assert sorted(i % 100 for ids in whole[:6] for i in ids) == list(range(SAMPLES))


def test_stream_that_knows_its_place_is_not_read_again(tmp_path: Path) -> None:  # case 75
    run(LOADERS["placed"](), tmp_path, 5)
    loader = LOADERS["placed"]()
    run(loader, tmp_path, 6)
    assert loader.dataset.read == 3, "the sixth batch has what is left of 23"


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_every_row_counts_once_for_any_number_of_workers(world: int) -> None:
    feeds = [StreamFeed(DataLoader(Plain(), batch_size=BATCH), 0) for _ in range(world)]
    for step in range(8):
        ids: list[int] = []
        weight = 0.0
        for rank, feed in enumerate(feeds):
            cut = Cut.make(rank, world, pieces=2)
            for number, share in enumerate(feed.shares(step, cut)):
                batch = feed.batch(step, 99, cut, number)
                if share.weight:
                    ids += batch["id"].tolist()
                    weight += share.weight
        size = 3 if step == 5 else 4
        first = 100 * (step // 6) + 4 * (step % 6)
        assert ids == list(range(first, first + size))
        assert weight == pytest.approx(1.0)


def test_failed_step_gets_the_same_rows_and_newcomers_the_same_place() -> None:
    feed = StreamFeed(DataLoader(Placed(), batch_size=BATCH), 0)
    for step in range(3):
        before = feed.batch(step, 99, Cut.make(0, 1))
    feed.rewind()
    assert feed.batch(2, 99, Cut.make(0, 2))["id"].tolist() == before["id"].tolist()[:2]
    newcomer = StreamFeed(DataLoader(Placed(), batch_size=BATCH), 0)
    newcomer.seek({"step": 2, **feed.describe(2)})
    assert newcomer.batch(2, 99, Cut.make(1, 2))["id"].tolist() == before["id"].tolist()[2:]


def test_stream_without_a_batch_says_so_and_does_not_spin(tmp_path: Path) -> None:
    class Empty(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(ConfigError, match="holds no batch"):
        run(DataLoader(Empty(), batch_size=2), tmp_path, 3)


def test_stream_of_another_run_is_refused(tmp_path: Path) -> None:
    run(LOADERS["plain"](), tmp_path, 3)
    with pytest.raises(ConfigError, match="global batch of 4 and goes on with a global batch of 5"):
        run(DataLoader(Plain(), batch_size=5), tmp_path, 6)


def test_divided_data_set_is_refused() -> None:
    distributed = pytest.importorskip("datasets.distributed")
    half = distributed.split_dataset_by_node(hugging_face(), rank=0, world_size=2)
    with pytest.raises(ConfigError, match="split by node"):
        StreamFeed(DataLoader(half, batch_size=2), 0)


def test_rows_of_every_kind_of_batch() -> None:
    pair = namedtuple("pair", "a b")
    batch = {
        "t": torch.arange(6).view(3, 2),
        "names": ["a", "b", "c"],
        "pair": pair(torch.arange(3), (torch.ones(3), torch.zeros(3, 1))),
        "scale": torch.tensor(2.0),
        "kind": "train",
    }
    assert rows_of(batch) == 3
    taken = take_rows(batch, 1, 3)
    assert taken["t"].tolist() == [[2, 3], [4, 5]] and taken["names"] == ["b", "c"]
    assert taken["pair"].a.tolist() == [1, 2] and taken["pair"].b[1].shape == (2, 1)
    assert taken["scale"] == 2.0 and taken["kind"] == "train"


@pytest.mark.parametrize("batch", [{"a": torch.ones(3), "b": torch.ones(2)}, torch.ones(0), {}])
def test_batch_without_common_rows_is_refused(batch: Any) -> None:
    with pytest.raises(ConfigError, match="same number of rows"):
        rows_of(batch)
