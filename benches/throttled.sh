# shellcheck shell=bash
# shellcheck disable=SC2154 # the runner has set fanfs, n and room
# Rate-limited replicas, for the runners beside this file, which source it.
#
# Expects: fanfs (the program), n (the number of replicas), room (the run's own directory, with its
# replicas at r1, r2, ...). The throttle is the block layer's (cgroup version 1 or 2). It counts
# against the reading process, so the daemon runs in the throttled cgroup and the applications do
# not.

if [ -d /sys/fs/cgroup/blkio ]; then
  version=1 group=/sys/fs/cgroup/blkio/$(basename "$room")
else
  version=2 group=/sys/fs/cgroup/$(basename "$room")
  echo +io >/sys/fs/cgroup/cgroup.subtree_control
fi
export FANFS_RUNTIME_DIR=$room/run
mkdir -p "$group" "$room/mnt" "$room/run"

device() { awk -v m="$room/r$1" '$5 == m { print $3 }' /proc/self/mountinfo; }
# throttle I BYTES_PER_SECOND: 0 for no limit
throttle() {
  if [ $version = 1 ]; then
    echo "$(device "$1") $2" >"$group/blkio.throttle.read_bps_device"
  else
    echo "$(device "$1") rbps=$([ "$2" = 0 ] && echo max || echo "$2")" >"$group/io.max"
  fi
}
set_rates() { local i=1 r; for r in "$@"; do throttle "$i" $((r << 20)); i=$((i + 1)); done; }
cold() { sync; echo 3 >/proc/sys/vm/drop_caches; }
# Runs a command in the throttled cgroup.
throttled() { bash -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; }

# Unmounts everything, the volume first; the daemon may need a moment to close files on the
# replicas.
unmount_all() {
  local i
  for i in $(seq "$n"); do throttle "$i" 0 2>/dev/null || true; done
  if mountpoint -q "$room/mnt"; then "$fanfs" umount --lazy "$room/mnt" || umount -l "$room/mnt"; fi
  for i in $(seq "$n"); do
    for _ in 1 2 3 4 5; do mountpoint -q "$room/r$i" || break; umount "$room/r$i" 2>/dev/null || sleep 0.5; done
  done
  rmdir "$group" 2>/dev/null || true
}
