#!/bin/bash
# Stands where systemctl does, to stop a scope of systemd-run.sh's.
echo "$*" >>/var/log/systemctl.log
folder=/sys/fs/cgroup/pids/$(hostname)_slurm-scopes/${!#}
[ -d "$folder" ] || { echo "Unit ${!#} not loaded." >&2; exit 5; }
for n in $(seq 100); do
    for pid in $(cat "$folder/cgroup.procs"); do kill -9 "$pid"; done 2>/dev/null
    rmdir "$folder" 2>/dev/null && exit 0
    sleep 0.05
done
exit 1
