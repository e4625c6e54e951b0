"""The driver of CUDA: with it the memory of batches is registered, and a GPU copies batches from where they lie."""

from __future__ import annotations

import ctypes
from typing import Any

from forebay._forebay import HostRegistry

_CALLED = ("cuMemHostRegister_v2", "cuMemHostUnregister", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")


def driver() -> Any:
    """Loads the library of the driver, which torch has loaded already."""
    return ctypes.CDLL("libcuda.so.1")


def host_registry(torch: Any, device: Any) -> tuple[HostRegistry | None, str]:
    """Returns a registry for memory that `device` copies from, or None and the reason."""
    if getattr(getattr(torch, "version", None), "hip", None):
        return None, "torch is built for ROCm"
    try:
        library = driver()
        functions = [getattr(library, name) for name in _CALLED]
        number, context = ctypes.c_int(), ctypes.c_void_p()
        # Never released: the context is torch's, and lives as long as the process.
        error = library.cuDeviceGet(ctypes.byref(number), device.index)
        error = error or library.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
    except (OSError, AttributeError) as missing:
        return None, f"the driver of CUDA cannot be called: {missing}"
    if error or not context.value:
        return None, f"the driver of CUDA returned error {error} for device {device.index}"
    register, unregister, push, pop = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    return HostRegistry(register, unregister, push, pop, context.value), ""
