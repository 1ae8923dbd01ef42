#!/usr/bin/python3
"""systemctl for a lab whose nodes have no systemd: the one thing that stands in for something when docs/install.md is followed.

It starts a unit's ExecStart as the unit says: its User, its CapabilityBoundingSet, Type=notify, KillMode=process. slurmd, whose unit is Debian's, is
started with the arguments that /etc/default/slurmd gives it. Anything it does not know is an error."""

import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time

UNITS = ["/etc/systemd/system", "/usr/local/lib/systemd/system"]
RUN = pathlib.Path("/run/systemctl")


def unit(name):
    for folder in UNITS:
        path = pathlib.Path(folder, name + ".service")
        if path.exists():
            lines = [line.strip() for line in path.read_text().splitlines()]
            pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
            return dict(pairs)
    sys.exit(f"Failed to enable unit: Unit file {name}.service does not exist.")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def end(pid):
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid), f"the end of {pid}")


def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"systemctl: waited 60 s for {what}")
        time.sleep(0.02)


def main_pid(name):
    try:
        pid = int((RUN / name).read_text())
    except OSError:
        return None
    return pid if alive(pid) else None


def start(name):
    if main_pid(name):
        return
    about = unit(name)
    if about["Type"] != "notify" or (name == "slurm-serve-agent" and about["KillMode"] != "process"):
        sys.exit(f"systemctl: {name} is not the unit that this knows how to start")
    RUN.mkdir(exist_ok=True)
    bounding = about.get("CapabilityBoundingSet")
    argv = ["setpriv"]
    if bounding is not None:
        kept = ["+" + word.lower().removeprefix("cap_") for word in bounding.split()]
        argv += ["--bounding-set", ",".join(["-all"] + kept)]
    if "User" in about:
        argv += ["--reuid", about["User"], "--regid", about["User"], "--clear-groups"]
    if about.get("NoNewPrivileges") == "yes":
        argv += ["--no-new-privs"]
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = str(RUN / (name + ".notify"))
    pathlib.Path(path).unlink(missing_ok=True)
    told.bind(path)
    os.chmod(path, 0o666)
    told.settimeout(60)
    log = open(f"/var/log/{name}.log", "ab")
    child = subprocess.Popen(
        argv + ["--"] + shlex.split(about["ExecStart"]),
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": path},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,
    )
    (RUN / name).write_text(str(child.pid))
    try:
        message = told.recv(4096)
    except TimeoutError:
        message = b"nothing"
    if b"READY=1" not in message:
        sys.exit(f"Job for {name}.service failed: it said {message}, and {open(log.name).read()[-2000:]}")


def slurmd():
    pids = subprocess.run(["pgrep", "-o", "-x", "slurmd"], capture_output=True, text=True).stdout.split()
    for pid in pids:
        end(int(pid))
    options = ""
    default = pathlib.Path("/etc/default/slurmd")
    if default.exists():
        for line in default.read_text().splitlines():
            if line.startswith("SLURMD_OPTIONS="):
                options = line.split("=", 1)[1].strip("'\"")
    subprocess.run(["/usr/sbin/slurmd"] + shlex.split(options), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def stop(name):
    pid = main_pid(name)
    if pid:
        end(pid)


def run(words):
    verb, names = words[0], [name.removesuffix(".service") for name in words[1:] if not name.startswith("-")]
    now = "--now" in words
    if verb == "daemon-reload":
        return
    for name in names:
        if name == "slurmd" and verb == "restart":
            slurmd()
        elif verb == "enable":
            unit(name)
            if now:
                start(name)
        elif verb == "disable":
            if now:
                stop(name)
        elif verb == "restart":
            stop(name)
            start(name)
        else:
            sys.exit(f"systemctl: {words} is not known here")


run(sys.argv[1:])
