//! Memory of a batch as arrays that Python libraries read and write in place.
//!
//! Each object that holds a view (numpy through the array interface, torch and JAX through DLPack) keeps the memory alive.
//! When the last one is dropped, the memory returns to its pool, on any thread and without the interpreter. The loader
//! decides what the arrays contain.

// SAFETY of this file: it hands addresses to foreign code. `Memory` never makes
// a Rust reference into its bytes once an address was taken, so foreign writes
// alias nothing.
#![expect(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLManagedTensor, DLManagedTensorVersioned,
};
use dlpark::metadata::Dynamic;
use dlpark::python::{DlpackExporter, ExportRequest, export_dlpack};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use forebay_batch::{ColumnArray, Element};
use forebay_wire::{Buffer, Dtype};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// DLPack's device type of CPU memory.
const DEVICE_CPU: u32 = 1;

/// Returns the name of the type in numpy's array interface. numpy has no bfloat16, so its bits are exposed as uint16.
fn numpy_name(element: Element) -> &'static str {
    match element {
        Element::Bool => "|b1",
        Element::Uint8 => "|u1",
        Element::Int8 => "|i1",
        Element::Uint16 | Element::Bfloat16 => "<u2",
        Element::Int16 => "<i2",
        Element::Uint32 => "<u4",
        Element::Int32 => "<i4",
        Element::Uint64 => "<u8",
        Element::Int64 => "<i8",
        Element::Float16 => "<f2",
        Element::Float32 => "<f4",
        Element::Float64 => "<f8",
        // Types that a later release of forebay-batch adds. This module creates none of them.
        _ => "|V1",
    }
}

fn dlpack_type(element: Element) -> DLDataType {
    let code = match element {
        Element::Bool => DLDataTypeCode::BOOL,
        Element::Int8 | Element::Int16 | Element::Int32 | Element::Int64 => DLDataTypeCode::INT,
        Element::Bfloat16 => DLDataTypeCode::BFLOAT,
        Element::Float16 | Element::Float32 | Element::Float64 => DLDataTypeCode::FLOAT,
        _ => DLDataTypeCode::UINT,
    };
    DLDataType::scalar(code, element.bytes() as u8 * 8)
}

/// Returns the element type of a batch's pixels.
fn element_of(dtype: Dtype) -> Element {
    match dtype {
        Dtype::Uint8 => Element::Uint8,
        Dtype::Float32 => Element::Float32,
        Dtype::Float16 => Element::Float16,
        Dtype::Bfloat16 => Element::Bfloat16,
    }
}

/// Memory whose address foreign code holds, and the owner that frees it.
struct Memory {
    address: *mut u8,
    owner: Option<Owner>,
    /// The process that may return the memory to its pool. In a forked child the memory leaks, because the pool's lock may
    /// have been held at the fork.
    process: u32,
}

/// Frees the memory on drop.
#[expect(dead_code)] // never read: arrays refer to the memory by its address
enum Owner {
    Pixels(Buffer),
    Numbers(Vec<i64>),
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

// SAFETY: the address points into `owner`, which is Send and Sync itself; Rust
// code does not dereference it, and foreign code synchronises as it does for
// every array.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.owner.take());
        }
    }
}

/// An array in the memory of a batch, for libraries to take without a copy.
///
/// numpy takes it through the array interface, everything else through DLPack. Both
/// may write into it. The memory goes back to its pool when the last taker lets go.
#[pyclass(frozen, module = "forebay._forebay", name = "Array")]
pub(crate) struct Array {
    memory: Arc<Memory>,
    /// Offset of the first element in the memory, in bytes.
    start: usize,
    element: Element,
    shape: Vec<usize>,
}

impl Array {
    fn new(address: *mut u8, owner: Owner, element: Element, shape: Vec<usize>) -> Array {
        Array {
            memory: Arc::new(Memory {
                address,
                owner: Some(owner),
                process: std::process::id(),
            }),
            start: 0,
            element,
            shape,
        }
    }

    /// Creates an array of a batch's pixels, which start its payload. Panics if `shape` has more elements of `dtype` than
    /// the buffer holds.
    pub(crate) fn pixels(mut buffer: Buffer, dtype: Dtype, shape: [usize; 4]) -> Array {
        let element = element_of(dtype);
        assert!(shape.iter().product::<usize>() * element.bytes() <= buffer.len());
        let address = buffer.as_mut_ptr();
        Array::new(address, Owner::Pixels(buffer), element, shape.into())
    }

    /// Creates an array of the first `len` bytes of a payload: encoded images, one after the other.
    pub(crate) fn encoded(mut buffer: Buffer, len: usize) -> Array {
        assert!(len <= buffer.len());
        let address = buffer.as_mut_ptr();
        Array::new(address, Owner::Pixels(buffer), Element::Uint8, vec![len])
    }

    /// Returns another array of the payload that starts with this array; `None` if it does not lie inside.
    pub(crate) fn beside(&self, array: &ColumnArray) -> Option<Array> {
        let Some(Owner::Pixels(buffer)) = &self.memory.owner else {
            return None;
        };
        let end = array.start.checked_add(array.bytes()?)?;
        (end <= buffer.len()).then(|| Array {
            memory: Arc::clone(&self.memory),
            start: array.start,
            element: array.element,
            shape: array.shape.clone(),
        })
    }

    /// Returns the address of the first element.
    fn address(&self) -> *mut u8 {
        // Inside the memory, or at its end if the array is empty.
        self.memory.address.wrapping_add(self.start)
    }

    /// Returns whether the elements are bfloat16, which numpy lacks.
    pub(crate) fn is_bfloat16(&self) -> bool {
        self.element == Element::Bfloat16
    }

    /// Creates an array of integers.
    pub(crate) fn numbers(mut values: Vec<i64>) -> Array {
        let (address, len) = (values.as_mut_ptr().cast(), values.len());
        Array::new(address, Owner::Numbers(values), Element::Int64, vec![len])
    }

    /// Creates an array of floats. `shape` must have as many elements as `values`.
    pub(crate) fn floats(mut values: Vec<f32>, shape: Vec<usize>) -> Array {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        let address = values.as_mut_ptr().cast();
        Array::new(address, Owner::Floats(values), Element::Float32, shape)
    }

    /// Creates an array of bytes.
    pub(crate) fn bytes(mut values: Vec<u8>) -> Array {
        let (address, len) = (values.as_mut_ptr(), values.len());
        Array::new(address, Owner::Bytes(values), Element::Uint8, vec![len])
    }

    /// Creates an array of booleans, one byte each.
    pub(crate) fn mask(flags: Vec<bool>) -> Array {
        let mut values: Vec<u8> = flags.into_iter().map(u8::from).collect();
        let (address, len) = (values.as_mut_ptr(), values.len());
        Array::new(address, Owner::Bytes(values), Element::Bool, vec![len])
    }

    fn export<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let shape: Vec<i64> = self.shape.iter().map(|&side| side as i64).collect();
        let mut tensor = Dynamic::compact(shape)
            .initialize_as::<M>(Arc::clone(&self.memory))
            .map_err(|e| PyBufferError::new_err(e.to_string()))?;
        tensor
            .set_data(self.address().cast::<c_void>())
            .set_dtype(dlpack_type(self.element))
            .set_device(DLDevice::CPU);
        // SAFETY: the address holds the product of `shape` elements without gaps,
        // stays valid while the context (a count on the memory) lives, may be
        // written, and dropping the context needs no interpreter.
        Ok(unsafe { tensor.finish() })
    }
}

impl DlpackExporter for Array {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.export()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.export()
    }
}

#[pymethods]
impl Array {
    /// The length of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", numpy_name(self.element))?;
        interface.set_item("data", (self.address() as usize, false))?;
        Ok(interface)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    pub(crate) fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let request = ExportRequest::parse(stream, max_version, dl_device, copy)?;
        export_dlpack(self, py, request)
    }

    pub(crate) fn __dlpack_device__(&self) -> (u32, i32) {
        (DEVICE_CPU, 0)
    }
}
