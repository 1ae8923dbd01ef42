#!/bin/sh
# What slurmd may run as HealthCheckProgram: asks whether this node's agent answers, and does about it what you choose in
# /etc/slurm-serve/health-check.conf. Without that file a line in the system's log is all it does.
#
#   ACTION=log       say so in the system's log (the default)
#   ACTION=restart   and restart the agent; models go on
#   ACTION=drain     and drain the node: for all jobs, also those without a model; it is resumed once the agent answers again
#   AFTER=3          only after so many bad answers in a row
#
# slurm-serve itself never drains a node: whether jobs without a model shall do without this node is for you to say. A node that
# somebody else has drained is neither drained again nor resumed.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ACTION=log
AFTER=3
CONF=${SLURM_SERVE_HEALTH_CONF:-/etc/slurm-serve/health-check.conf}
# shellcheck source=/dev/null
[ -r "$CONF" ] && . "$CONF"

state=/run/slurm-serve-health
mkdir -p -m 0755 "$state" || exit 1
node=${SLURMD_NODENAME:-$(hostname -s)}
reason="slurm-serve: the agent does not answer"
say() { logger -t slurm-serve-health -- "$*" 2>/dev/null || echo "slurm-serve-health: $*" >&2; }
# One field of the node's record.
field() { scontrol -o show node "$node" | sed -n "s/.* $1=\([^ ]*\).*/\1/p"; }

if why=$(sserve health 2>&1); then
    rm -f "$state/bad"
    if [ -e "$state/drained" ]; then
        rm -f "$state/drained"
        if scontrol -o show node "$node" | grep -qF "Reason=$reason"; then
            scontrol update "NodeName=$node" State=RESUME && say "$node is resumed: the agent answers again"
        fi
    fi
    exit 0
fi

bad=$(($(cat "$state/bad" 2>/dev/null || echo 0) + 1))
echo "$bad" >"$state/bad"
say "$why (bad answer $bad, ACTION=$ACTION after $AFTER)"
[ "$bad" -ge "$AFTER" ] || exit 1
case $ACTION in
log) ;;
restart)
    # Asked for once, then after as many bad answers again.
    echo 0 >"$state/bad"
    systemctl restart --no-block slurm-serve-agent || say "the agent can't be restarted"
    ;;
drain)
    case $(field State) in
    *DRAIN*) ;;
    *)
        if scontrol update "NodeName=$node" State=DRAIN "Reason=$reason"; then
            touch "$state/drained"
            say "$node is drained"
        fi
        ;;
    esac
    ;;
*) say "$CONF: ACTION=$ACTION is none of log, restart, drain" ;;
esac
exit 1
