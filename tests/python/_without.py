"""Runs a command in which some system calls fail, as the filter of a container makes them.

python _without.py ERROR CALL,CALL -- COMMAND ...
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# Numbers by architecture, and what the kernel calls it (linux/audit.h).
CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "memfd_create": 319,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "pidfd_open": 434,
            "pidfd_send_signal": 424,
            "futex_waitv": 449,
            "ptrace": 101,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "memfd_create": 279,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "pidfd_open": 434,
            "pidfd_send_signal": 424,
            "futex_waitv": 449,
            "ptrace": 117,
        },
    ),
}


def program(names, number):
    """The filter, by linux/filter.h: the calls of these names return the error of this number."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | number
    arch, numbers = CALLS[platform.machine()]
    code = [(load, 0, 0, 4), (jump_if_equal, 1, 0, arch), (answer, 0, 0, allow), (load, 0, 0, 0)]
    for name in names:
        code += [(jump_if_equal, 0, 1, numbers[name]), (answer, 0, 0, fail)]
    code.append((answer, 0, 0, allow))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def deny(names, number):
    """From now on, in this process and all that it starts."""
    set_no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    code = ctypes.create_string_buffer(program(names, number))
    described = ctypes.create_string_buffer(struct.pack("HxxxxxxP", (len(code) - 1) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((set_no_new_privileges, 1, 0, 0, 0), (set_seccomp, mode_filter, described)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    end = sys.argv.index("--")
    deny(sys.argv[2].split(","), getattr(errno, sys.argv[1]))
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
