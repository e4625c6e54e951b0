"""The functions of CUDA's driver that register memory: they refuse what the real ones refuse, and what breaks later ones."""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from typing import Any

CONTEXT = 0xC0
OUT_OF_MEMORY, NO_CONTEXT, ALREADY_REGISTERED, NOT_REGISTERED = 2, 201, 712, 713


class Driver:
    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.process = os.getpid()
        self.ranges: dict[int, int] = {}
        self.registrations = 0
        # Calls that a real driver refuses, or that break it later.
        self.errors: list[str] = []
        self._lock = threading.Lock()
        # Contexts that are current, by thread: for threads of others a callback has no thread-local storage.
        self._depth: dict[int, int] = {}
        number, size, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        self.cuMemHostRegister_v2 = ctypes.CFUNCTYPE(number, size, size, ctypes.c_uint)(self._register)
        self.cuMemHostUnregister = ctypes.CFUNCTYPE(number, size)(self._unregister)
        self.cuCtxPushCurrent_v2 = ctypes.CFUNCTYPE(number, size)(self._push)
        self.cuCtxPopCurrent_v2 = ctypes.CFUNCTYPE(number, ctypes.POINTER(pointer))(self._pop)

    def cuDeviceGet(self, number: Any, index: int) -> int:  # noqa: N802
        number._obj.value = 100 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, number: ctypes.c_int) -> int:  # noqa: N802
        context._obj.value = CONTEXT if number.value == 100 else 0
        return 0

    def covers(self, start: int, size: int) -> bool:
        with self._lock:
            return any(at <= start and start + size <= at + most for at, most in self.ranges.items())

    def _push(self, context: int) -> int:
        thread = threading.get_ident()
        self._depth[thread] = self._depth.get(thread, 0) + 1
        return 0 if context == CONTEXT else self._wrong("another context", NO_CONTEXT)

    def _pop(self, previous: Any) -> int:
        self._depth[threading.get_ident()] -= 1
        return 0

    def _register(self, start: int, size: int, flags: int) -> int:
        with self._lock:
            self._check_call()
            if self.most_bytes is not None and sum(self.ranges.values()) + size > self.most_bytes:
                return OUT_OF_MEMORY
            if flags != 1 or any(start < at + most and at < start + size for at, most in self.ranges.items()):
                return self._wrong(f"{start:x} is registered already", ALREADY_REGISTERED)
            self.ranges[start] = size
            self.registrations += 1
            return 0

    def _unregister(self, start: int) -> int:
        with self._lock:
            self._check_call()
            if start not in self.ranges:
                return self._wrong(f"{start:x} is not registered", NOT_REGISTERED)
            if not is_mapped(start):
                self.errors.append(f"{start:x} was unmapped while it was registered")
            del self.ranges[start]
            return 0

    def _check_call(self) -> None:
        if self._depth.get(threading.get_ident()) != 1:
            self.errors.append("no context is current on this thread")
        if os.getpid() != self.process:
            self.errors.append("called in a forked process")

    def _wrong(self, what: str, error: int) -> int:
        self.errors.append(what)
        return error


def is_mapped(address: int) -> bool:
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= address < end:
            return True
    return False
