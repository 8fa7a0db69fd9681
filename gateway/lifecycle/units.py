"""Units of systemd: one for the machine, hardened, and one for a user, from the same source.

deploy/parley.service is `system_unit()`; a test compares them. What each line is for stands in
docs/operations.md, *As a service*.
"""

from collections.abc import Iterable

SYSTEM_HOME = "/var/lib/parley"
SYSTEM_PROGRAM = "/opt/parley/bin/parley"

_UNIT = """\
[Unit]
Description=Parley, a chat gateway for an LLM agent
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=10min
StartLimitBurst=20
"""
_SERVICE = """\
[Service]
Type=notify
NotifyAccess=main
ExecStart={command} run
ExecReload=/bin/kill -HUP $MAINPID
# It is fed by progress: loop, database and worker (docs/operations.md).
WatchdogSec=60
Restart=on-failure
RestartSec=5
# A large database is migrated before it is ready.
TimeoutStartSec=1h
# Longer than queue.grace_s and the last deliveries.
TimeoutStopSec=60
KillMode=mixed
UMask=0077
LimitNOFILE=65536
# Memory is people's words: no core of it.
LimitCORE=0
"""
_OWN_USER = f"""\
User=parley
Group=parley
StateDirectory=parley
StateDirectoryMode=0700
Environment=PARLEY_HOME={SYSTEM_HOME}
# Keys: `LoadCredential=NAME:/etc/parley/NAME` here, `credential:NAME` in parley.yaml.
"""
_FOR_ALL = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
)
_HARDENED = (
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
    "ProtectProc=invisible",
    "RemoveIPC=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    # Namespaces are what bubblewrap confines tools with; Landlock needs none.
    "RestrictNamespaces=user mnt pid net ipc uts",
    # By their names: the group @sandbox is not known to each systemd.
    "SystemCallFilter=@system-service @mount seccomp",
    "SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    "SystemCallErrorNumber=EPERM",
)


def system_unit(program: str = SYSTEM_PROGRAM) -> str:
    """Return the unit for /etc/systemd/system: a user of its own, and nothing else to write to."""
    hardening = _lines((*_FOR_ALL, *_HARDENED))
    service = _SERVICE.format(command=_command(program))
    return f"{_UNIT}\n{service}{_OWN_USER}{hardening}\n[Install]\nWantedBy=multi-user.target\n"


def user_unit(program: str, home: str, options: Iterable[str] = ()) -> str:
    """Return the unit for ~/.config/systemd/user.

    Args:
        program: The path of `parley`.
        home: PARLEY_HOME.
        options: Of `parley` itself, before `run`.
    """
    service = _SERVICE.format(command=_command(program, *options))
    environment = f"Environment={_quoted(f'PARLEY_HOME={home}')}\n"
    return (
        f"{_UNIT}\n{service}{environment}{_lines(_FOR_ALL)}\n[Install]\nWantedBy=default.target\n"
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _command(*words: str) -> str:
    # In a command alone "$" begins a variable.
    return " ".join(_quoted(each).replace("$", "$$") for each in words)


def _quoted(text: str) -> str:
    """Return a word as a unit has it. Source: systemd.syntax(7), systemd.unit(5) "%"."""
    safe = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{safe}"' if set(text) & set(" \t\"'\\;") else safe
