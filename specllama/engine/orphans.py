"""No llama-server is left behind when specllama itself is killed.

Linux: the kernel kills the child when the thread that started it ends (PR_SET_PDEATHSIG).
Windows: the child is put in a job object that ends with our last handle to it.
macOS has neither; there a killed (not merely stopped) specllama can leave its server
running. `docs/architecture.md` says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

# Only the child itself can set PR_SET_PDEATHSIG (1; prctl(2)), and code between a fork and an exec
# may deadlock on a lock held by another thread (a spinner's, say). So we start a bare Python that
# sets it and execs the server: same process, same pid. Its arguments: our pid, the descriptor for
# an error, and the server's argv. Python ignores two signals, which the server would inherit.
_BECOME = """
import ctypes, os, signal, sys
parent, error_fd = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
os.set_inheritable(error_fd, False)
for s in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(s, signal.SIG_DFL)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as e:
    os.write(error_fd, str(e.errno).encode())
    os._exit(127)
"""


def tied(argv: Sequence[str], error_fd: int) -> list[str]:
    """Linux: a command that execs `argv`, killed when we die. If the exec fails, it writes the
    errno in digits to `error_fd`; otherwise the exec closes that."""
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(error_fd), *argv]


if sys.platform == "win32":  # pragma: no cover
    import ctypes
    from ctypes import wintypes

    _jobs: list[int] = []  # open until we exit, which kills the children

    class _BasicLimits(ctypes.Structure):
        _fields_ = [
            ("PerProcessUserTimeLimit", ctypes.c_int64),
            ("PerJobUserTimeLimit", ctypes.c_int64),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        ]

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = [
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        ]

    def adopt(popen: subprocess.Popen[bytes]) -> None:
        """Puts the child into a job that is killed when our handle closes."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        kernel.AssignProcessToJobObject.argtypes = [wintypes.HANDLE, wintypes.HANDLE]
        kernel.SetInformationJobObject.argtypes = [
            wintypes.HANDLE,
            ctypes.c_int,
            ctypes.c_void_p,
            wintypes.DWORD,
        ]
        job = kernel.CreateJobObjectW(None, None)
        limits = _ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = 0x2000  # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
        kernel.SetInformationJobObject(job, 9, ctypes.byref(limits), ctypes.sizeof(limits))
        kernel.AssignProcessToJobObject(job, int(popen._handle))  # type: ignore[attr-defined]
        _jobs.append(job)

else:

    def adopt(popen: subprocess.Popen[bytes]) -> None:
        """Nothing to do: see `tied`."""
