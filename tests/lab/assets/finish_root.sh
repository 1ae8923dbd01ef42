#!/bin/sh
# Makes a fresh Debian a lab's root: users, mount points. Runs inside, as root. Arguments: NAME:UID of each user,
# then `--`, the shared group as NAME:GID, and its members.
set -eu

while [ "$1" != "--" ]; do
    name=${1%:*} uid=${1#*:}
    groupadd --gid "$uid" "$name"
    # No home yet: /home is shared by the nodes and made with each lab.
    useradd --uid "$uid" --gid "$uid" --no-create-home --shell /bin/bash "$name"
    shift
done
shift
groupadd --gid "${1#*:}" "${1%:*}"
group=${1%:*}
shift
for member; do
    usermod --append --groups "$group" "$member"
done

mkdir -p /opt/vllm /opt/models /etc/slurm-serve /var/lib/slurm/slurmd /var/lib/slurm/slurmctld /var/log/slurm
chown slurm:slurm /var/lib/slurm/slurmctld /var/log/slurm
# Each lab makes its own.
rm -f /etc/munge/munge.key
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
