//! Registration of batch memory with the driver of CUDA, by addresses of its functions.

// The functions of a foreign library are called by their addresses.
#![expect(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_batch::{DeviceDriver, HostRegistry};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// CU_MEMHOSTREGISTER_PORTABLE: the memory is registered for all devices.
const PORTABLE: c_uint = 1;

type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Unregister = unsafe extern "C" fn(*mut c_void) -> c_int;
type Push = unsafe extern "C" fn(*mut c_void) -> c_int;
type Pop = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

/// The functions of the driver, which return 0 or an error.
struct Functions {
    register: Register,
    unregister: Unregister,
    push: Push,
    pop: Pop,
}

struct Cuda {
    functions: Functions,
    /// Address of the context that the memory is registered in.
    context: usize,
    /// Registered ranges: start and length.
    ranges: Mutex<BTreeMap<usize, usize>>,
    /// The last error of a registration; 0 if there was none.
    error: AtomicI32,
}

impl Cuda {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // Changed by single calls, so the state is valid.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `function` with the context current on this thread, and returns its error.
    fn within(&self, function: impl FnOnce(&Functions) -> c_int) -> c_int {
        // SAFETY: `PyHostRegistry::new` requires functions with these signatures and a context that is never released.
        let pushed = unsafe { (self.functions.push)(self.context as *mut c_void) };
        if pushed != 0 {
            return pushed;
        }
        let result = function(&self.functions);
        let mut previous = std::ptr::null_mut();
        // SAFETY: as above; `previous` is written.
        unsafe { (self.functions.pop)(&raw mut previous) };
        result
    }
}

impl DeviceDriver for Cuda {
    fn register(&self, address: usize, len: usize) -> bool {
        // SAFETY: the range is one mapping of this process, which unmaps it after `unregister`.
        let register =
            |f: &Functions| unsafe { (f.register)(address as *mut c_void, len, PORTABLE) };
        let error = self.within(register);
        match error {
            0 => drop(self.ranges().insert(address, len)),
            error => self.error.store(error, Ordering::Relaxed),
        }
        error == 0
    }

    fn unregister(&self, address: usize, _: usize) {
        self.ranges().remove(&address);
        // An error says that the driver has shut down, which ended all registrations.
        // SAFETY: the address was registered.
        self.within(|f| unsafe { (f.unregister)(address as *mut c_void) });
    }
}

/// Registers the memory of batches with a driver. The driver's functions are called from any thread.
#[pyclass(frozen, module = "forebay._forebay", name = "HostRegistry")]
pub(crate) struct PyHostRegistry(Arc<Cuda>);

impl PyHostRegistry {
    pub(crate) fn registry(&self) -> HostRegistry {
        HostRegistry::new(Arc::clone(&self.0) as Arc<dyn DeviceDriver>)
    }
}

#[pymethods]
impl PyHostRegistry {
    /// Takes the addresses of `cuMemHostRegister_v2`, `cuMemHostUnregister`, `cuCtxPushCurrent_v2` and `cuCtxPopCurrent_v2`, or of
    /// functions with the same signatures, and a context that lives as long as the process.
    #[new]
    #[pyo3(signature = (register, unregister, push, pop, context, /))]
    fn new(
        register: usize,
        unregister: usize,
        push: usize,
        pop: usize,
        context: usize,
    ) -> PyResult<Self> {
        if [register, unregister, push, pop].contains(&0) {
            return Err(PyValueError::new_err("a function has the address 0"));
        }
        // SAFETY: the caller gives addresses of functions with these signatures; this class is not public.
        let functions = unsafe {
            Functions {
                register: std::mem::transmute::<usize, Register>(register),
                unregister: std::mem::transmute::<usize, Unregister>(unregister),
                push: std::mem::transmute::<usize, Push>(push),
                pop: std::mem::transmute::<usize, Pop>(pop),
            }
        };
        Ok(PyHostRegistry(Arc::new(Cuda {
            functions,
            context,
            ranges: Mutex::default(),
            error: AtomicI32::new(0),
        })))
    }

    /// Returns whether all of the memory is registered.
    fn covers(&self, address: usize, bytes: usize) -> bool {
        let ranges = self.0.ranges();
        let range = ranges.range(..=address).next_back();
        range.is_some_and(|(start, len)| bytes <= len.saturating_sub(address - start))
    }

    /// Bytes that are registered now.
    #[getter]
    fn registered_bytes(&self) -> usize {
        self.0.ranges().values().sum()
    }

    /// The driver's last error of a registration; 0 if there was none.
    #[getter]
    fn error(&self) -> i32 {
        self.0.error.load(Ordering::Relaxed)
    }
}
