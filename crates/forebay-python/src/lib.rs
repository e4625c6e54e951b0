//! The extension module `forebay._forebay`.

use std::ffi::OsString;

use pyo3::prelude::*;

mod array;
mod batch;
mod failure;
mod pump;
mod transform;

/// Runs the command line; returns its exit code.
#[pyfunction]
fn _main(py: Python<'_>, args: Vec<OsString>) -> i32 {
    py.detach(|| forebay_cli::main_from(args))
}

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<array::Array>()?;
    module.add_class::<batch::PyBatch>()?;
    module.add_class::<transform::PyTrainTransform>()?;
    module.add_class::<transform::PyEvalTransform>()?;
    module.add_function(wrap_pyfunction!(_main, module)?)?;
    Ok(())
}
