"""A systemd unit: a system unit for root, otherwise a user unit."""

from __future__ import annotations

import os
import re

from specllama.formats import server
from specllama.formats.base import Decision, WrittenFiles, commented

_KEY_FILE = "/etc/specllama/api-key"
_KEY_ENV = "%E/specllama/api-key.env"
# The user manager has no such target.
_NETWORK = "After=network-online.target\nWants=network-online.target\n"
# Works without mount namespaces, so in the user manager too.
_HARDENED = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
UMask=0077
"""
_MACHINE = """\
DynamicUser=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateTmp=yes
RemoveIPC=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
CacheDirectory=specllama
Environment="HOME=%C/specllama"
"""
_NO_DEVICES = "PrivateDevices=yes\n"
# Devices of NVIDIA, AMD and Intel. NVIDIA's nodes are created by a setuid helper, which
# NoNewPrivileges blocks: so it runs first, with full privileges, where it exists.
_GPU = """\
ExecStartPre=+-/usr/bin/nvidia-modprobe -c 0 -u
PrivateDevices=no
DevicePolicy=closed
DeviceAllow=char-nvidia* rw
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
"""
_GROUPS = ("video", "render")


def write(decision: Decision) -> WrittenFiles:
    """The unit, with a comment saying where to save it."""
    return unit(decision, for_machine=hasattr(os, "geteuid") and os.geteuid() == 0)


def unit(decision: Decision, for_machine: bool) -> WrittenFiles:
    """A system unit (`for_machine`) or a user unit."""
    cmd = server.command(decision)
    if for_machine:
        server.refuse_writing(cmd, "a system service")
    name = f"specllama-{decision.name}"
    words = [quoted(cmd.program[0], program=True), *map(quoted, cmd.program[1:])]
    lines = [" ".join(words), *(" ".join(map(quoted, o.words)) for o in cmd.options)]
    key = ""
    keyed = decision.plan.settings.api_key and not cmd.value(server.KEY_FILE)
    notes = _machine_notes(name, cmd) if for_machine else _user_notes(name)
    if keyed and for_machine:
        key = f"LoadCredential=api-key:{_KEY_FILE}\n"
        lines.append(f'"{server.KEY_FILE}" "%d/api-key"')
        notes += (f"write the API key to {_KEY_FILE} (owner root, mode 0600)",)
    elif keyed:
        key = f"EnvironmentFile={_KEY_ENV}\n"
        notes += ('write LLAMA_API_KEY="…" to ~/.config/specllama/api-key.env (mode 0600)',)
    if any("mlock" in word for o in cmd.options for word in o.words[:2]):
        key += "LimitMEMLOCK=infinity\n"
    target = "multi-user.target" if for_machine else "default.target"
    text = (
        f"{commented((*decision.comments, *notes))}\n"
        f"[Unit]\nDescription=llama-server with {decision.name}\n"
        f"{_NETWORK if for_machine else ''}"
        "StartLimitIntervalSec=600\nStartLimitBurst=5\n\n"
        "[Service]\nType=exec\nExecStart=" + " \\\n  ".join(lines) + "\n"
        "Restart=on-failure\nRestartSec=5\nTimeoutStopSec=30\n"
        f"{key}{_HARDENED}{_MACHINE + _devices(decision) if for_machine else ''}\n"
        f"[Install]\nWantedBy={target}\n"
    )
    return WrittenFiles(text, notes)


def _devices(decision: Decision) -> str:
    """Access to a GPU's device files, and their groups on this machine: systemd does not start a
    unit that names a missing group."""
    if not server.uses_gpu(decision):
        return _NO_DEVICES
    groups = [name for name in _GROUPS if _is_group(name)]
    if not groups:
        return _GPU + (
            "# None of the usual GPU device groups exists here; on a machine that has them:\n"
            f"#SupplementaryGroups={' '.join(_GROUPS)}\n"
        )
    return _GPU + (
        "# The GPU device groups of this machine; on another one list only those `getent group` knows.\n"
        f"SupplementaryGroups={' '.join(groups)}\n"
    )


def _is_group(name: str) -> bool:
    try:
        import grp
    except ImportError:  # Windows
        return False
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def quoted(word: str, program: bool = False) -> str:
    """A literal word of ExecStart=: in double quotes, with \\, ", % and $ escaped or doubled and
    control characters as \\xNN. In the program's path $ is not special."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    word = re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", word)
    return f'"{word if program else word.replace("$", "$$")}"'


def _machine_notes(name: str, cmd: server.ServerCommand) -> tuple[str, ...]:
    in_home = [w for w in cmd.argv if w.startswith(("/root/", "/home/"))]
    return (
        f"save as /etc/systemd/system/{name}.service; systemctl enable --now {name}",
        "it runs as a dynamic user (DynamicUser=), which must be able to read the program and the models"
        + (f"; {in_home[0]} is in a home folder" if in_home else ""),
        "if the GPU is not ready at boot, llama-server silently falls back to the CPU; "
        "check the speed with `specllama probe --url`",
    )


def _user_notes(name: str) -> tuple[str, ...]:
    return (
        f"save as ~/.config/systemd/user/{name}.service; systemctl --user enable --now {name}",
        "`loginctl enable-linger` keeps it running after you log out",
    )
