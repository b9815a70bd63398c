"""Pages of the log files in a run's folder, by byte offset, whole lines only."""

from __future__ import annotations

from pathlib import Path

from surefoot.report.clean import clean
from surefoot.report.logfile import LINE, LOGS, log_paths
from surefoot.report.words import short
from surefoot.web import schema
from surefoot.web.watch import Watch

MOST_BYTES = 256 * 1024


def log_list(watch: Watch) -> schema.LogList:
    """Return the log files there are, in order of launch."""
    names = _names(watch)
    order = {instance: index for index, instance in enumerate(names)}
    rows = []
    for kind, name in LOGS.items():
        paths = log_paths(watch.folder, name)
        for instance in sorted(paths, key=lambda i: order.get(i, -1)):
            rows.append(
                schema.LogFile(
                    vm=names.get(instance, clean(instance)),
                    instance_id=clean(instance),
                    kind=kind,
                    size_bytes=_size(paths[instance]),
                )
            )
    return schema.LogList(logs=rows)


def log_file(watch: Watch, vm: str, kind: str) -> Path | None:
    """Return the log of a VM by instance id or short name; never a path made from the request."""
    paths = log_paths(watch.folder, LOGS[kind])
    names = _names(watch)
    fit = [path for i, path in paths.items() if vm in (i, clean(i), names.get(i))]
    return fit[0] if len(fit) == 1 else None


def page(path: Path, *, offset: int, limit: int, tail: int | None) -> schema.LogPage:
    """Return up to `limit` whole lines from a byte offset on, or the last `tail` ones.

    A last line without its line feed is left for later, unless it has grown past a page.
    """
    size = _size(path)
    begin = min(max(0, size - MOST_BYTES), size) if tail is not None else min(offset, size)
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(MOST_BYTES)
    except OSError:
        data = b""
    if tail is not None and begin and b"\n" in data:  # begin with a whole line
        cut = data.index(b"\n") + 1
        begin, data = begin + cut, data[cut:]
    end = data.rfind(b"\n") + 1
    if not end and len(data) == MOST_BYTES:
        end = len(data)
    whole = data[:end].endswith(b"\n")
    lines = data[:end].split(b"\n")[:-1] if whole else [data] * bool(end)
    if tail is not None:
        skipped = lines[: max(0, len(lines) - tail)]
        begin += sum(len(line) + 1 for line in skipped)
        lines = lines[len(skipped) :]
    kept = lines[:limit]
    last = begin + sum(len(line) + whole for line in kept)
    return schema.LogPage(
        lines=[clean(line.decode("utf-8", "replace"), limit=LINE, lines=True) for line in kept],
        offset=begin,
        next_offset=last,
        size_bytes=size,
    )


def _names(watch: Watch) -> dict[str, str]:
    return {vm.instance_id: short(vm.token) for vm in watch.vms.values() if vm.instance_id}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
