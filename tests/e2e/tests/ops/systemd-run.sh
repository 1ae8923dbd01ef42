#!/bin/bash
# Stands where systemd-run does, for a scope: notes what it was told, enters a cgroup with the unit's name, becomes the user,
# and is the program. As the real one it leaves the groups as they are.
echo "$*" >>/var/log/systemd-run.log
while :; do
    case $1 in
    --unit=*) unit=${1#--unit=} ;;
    --uid=*) uid=${1#--uid=} ;;
    --gid=*) gid=${1#--gid=} ;;
    --) shift; break ;;
    --*) ;;
    *) break ;;
    esac
    shift
done
# As the node's name begins, so that the lab finds what is left; it has to be there for a lab that runs Slurm.
folder=/sys/fs/cgroup/pids/$(hostname)_slurm-scopes/$unit
mkdir -p "$folder" && echo $$ >"$folder/cgroup.procs" || { echo "Failed to start transient scope unit: $folder" >&2; exit 1; }
[ -z "$uid" ] || exec setpriv --reuid="$uid" --regid="$gid" --keep-groups -- "$@"
exec "$@"
