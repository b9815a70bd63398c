"""The shell program that a host runs for us: start, show and end the one VM that it can be.

A VM is a folder below `vms/` with a `record`; the folder `slot` is held by the one that runs.
All of it goes through ssh's standard input: nothing secret stands in a process list.
"""

from __future__ import annotations

import shlex

HEAD = r"""
set -u
umask 077
cd "$HOME" && mkdir -p "$base/vms" && cd "$base" && base=$(pwd) || exit 70
alive() {  # the first process of the VM in folder $1 runs, and is not another with its number
  read -r pid start boot < "$1/process" 2>/dev/null || return 1
  [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] || return 1
  [ "$(ticks "$pid")" = "$start" ]
}
ticks() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
members() {  # every process that inherited the mark of the VM in folder $1
  for each in /proc/[0-9]*; do
    if tr '\0' '\n' < "$each/environ" 2>/dev/null | grep -qxF "SUREFOOT_VM_DIR=$1"; then
      echo "${each#/proc/}"
    fi
  done
}
finish() {  # end all of the VM in folder $1; note when ($2, epoch ms) and how ($3)
  [ -e "$1/ended" ] || { echo "$2 $3" > "$1/ended.new" && mv "$1/ended.new" "$1/ended"; }
  tries=0
  while left=$(members "$1") && [ -n "$left" ] && [ $tries -lt 50 ]; do
    kill -KILL $left 2>/dev/null
    tries=$((tries + 1)); sleep 0.05
  done
  [ "$(cat slot/vm 2>/dev/null)" = "$1" ] && rm -rf slot
  return 0
}
look() {  # settle what has happened to the VM in folder $1, at $2 (epoch ms)
  [ -e "$1/ended" ] && return 0
  alive "$1" && return 0
  if [ -e "$1/exited" ]; then
    read -r at code < "$1/exited"
    how=exited
    [ "${code:-0}" -gt 128 ] && how=killed  # a signal ended the agent, and it was not ours
    finish "$1" $(( $2 - ($(date +%s) - at) * 1000 )) $how
  elif [ -e "$1/process" ]; then
    finish "$1" "$2" killed
  fi
}
tell() {  # one line: the record, the state
  state=starting
  [ -e "$1/process" ] && state=running
  [ -e "$1/ended" ] && state="ended $(cat "$1/ended")"
  printf 'vm %s %s\n' "$(cat "$1/record")" "$state"
}
"""
"""Functions, run by any POSIX shell on Linux."""

SHOW = r"""
for vm in "$base"/vms/*/; do
  vm=${vm%/}
  [ -e "$vm/record" ] || continue
  look "$vm" "$now"
  tell "$vm"
done
echo done
"""

START = r"""
vm="$base/vms/$id"
if [ -e "$vm/record" ]; then look "$vm" "$now"; tell "$vm"; echo done; exit 0; fi
if ! mkdir slot 2>/dev/null; then
  held=$(cat slot/vm 2>/dev/null)
  [ -n "$held" ] && [ -e "$held/record" ] && look "$held" "$now"
  if ! mkdir slot 2>/dev/null; then echo busy; exit 0; fi
fi
mkdir -p "$vm" && echo "$vm" > slot/vm && printf '%s\n' "$record" > "$vm/record.new" || exit 70
cat > "$vm/boot" <<'@END@'
@BOOT@
@END@
mv "$vm/record.new" "$vm/record"
export SUREFOOT_VM_DIR="$vm"
setsid sh -c 'sh "$1/boot"; code=$?; echo "$(date +%s) $code" > "$1/exited"' vm "$vm" \
  > "$vm/console.log" 2>&1 < /dev/null &
pid=$!
echo "$pid $(ticks $pid) $(cat /proc/sys/kernel/random/boot_id)" > "$vm/process.new"
mv "$vm/process.new" "$vm/process"
tell "$vm"
echo done
"""

END = r"""
vm="$base/vms/$id"
[ -e "$vm/record" ] && { look "$vm" "$now"; finish "$vm" "$now" terminated; }
echo done
"""

FORGET_DAYS = 7
SWEEP = f'find "$base/vms" -mindepth 1 -maxdepth 1 -mtime +{FORGET_DAYS} -exec rm -rf {{}} +\n'


def show(folder: str, *, now_ms: int) -> str:
    """Return the program that prints all VMs that the host remembers."""
    return _head(folder, now=str(now_ms)) + SHOW


def start(folder: str, *, now_ms: int, id: str, record: str, boot: str) -> str:
    """Return the program that starts a VM, or shows it if that id was started before.

    Prints `busy` when another VM has the host.
    """
    mark = "SUREFOOT-END"
    while mark in boot:
        mark += "-X"
    body = START.replace("@END@", mark).replace("@BOOT@", boot)
    return _head(folder, now=str(now_ms), id=id, record=record) + SWEEP + body


def end(folder: str, *, now_ms: int, id: str) -> str:
    """Return the program that ends a VM; one that has ended or is unknown is left as it is."""
    return _head(folder, now=str(now_ms), id=id) + END


def _head(folder: str, **values: str) -> str:
    given = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return f"base={shlex.quote(folder)}\n{given}{HEAD}"
