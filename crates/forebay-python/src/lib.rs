//! The extension module `forebay._forebay`.

use std::ffi::OsString;

use pyo3::prelude::*;

mod array;
mod batch;
mod checkpoint;
mod column;
mod command;
mod dataset;
mod device;
mod failure;
mod loader;
mod patience;
mod pump;
mod steps;
mod storage;
mod transform;
mod writer;

/// Runs the command line; returns its exit code.
#[pyfunction]
fn _main(py: Python<'_>, args: Vec<OsString>) -> i32 {
    py.detach(|| forebay_cli::main_from(args))
}

/// Logs each long wait for a store with Python's logger `forebay`.
fn log_long_waits() {
    forebay_store::on_long_wait(|line| {
        let line = line.to_owned();
        // The calling thread runs requests, so it must not wait for the interpreter.
        let thread = std::thread::Builder::new().name("forebay-log".into());
        let _ = thread.spawn(move || {
            // `try_attach` returns `None` while the interpreter shuts down.
            Python::try_attach(|py| -> PyResult<()> {
                let logger = py
                    .import("logging")?
                    .call_method1("getLogger", ("forebay",))?;
                logger.call_method1("warning", (line,)).map(|_| ())
            })
        });
    });
}

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    log_long_waits();
    forebay_cli::share_seek_points();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<array::Array>()?;
    module.add_class::<batch::PyBatch>()?;
    module.add_class::<checkpoint::PyBuffer>()?;
    module.add_class::<checkpoint::PyDraft>()?;
    module.add_class::<checkpoint::PyDraftFile>()?;
    module.add_class::<checkpoint::PyRequest>()?;
    module.add_class::<checkpoint::Saved>()?;
    module.add_class::<checkpoint::PyCheckpoint>()?;
    module.add_function(wrap_pyfunction!(checkpoint::_checkpoint_area, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::_checkpoint_list, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::_checkpoint_latest, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::_checkpoint_pin, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint::_checkpoint_share, module)?)?;
    module.add_class::<dataset::PyDataset>()?;
    module.add_class::<dataset::Record>()?;
    module.add_class::<dataset::Records>()?;
    module.add_class::<dataset::SampleDecoder>()?;
    module.add_class::<device::PyHostRegistry>()?;
    module.add_class::<loader::PyLoader>()?;
    module.add_class::<loader::Epoch>()?;
    module.add_function(wrap_pyfunction!(dataset::open, module)?)?;
    module.add_function(wrap_pyfunction!(dataset::_reopen, module)?)?;
    module.add_class::<transform::PyTrainTransform>()?;
    module.add_class::<transform::PyEvalTransform>()?;
    module.add_class::<transform::PyKeepEncoded>()?;
    module.add_function(wrap_pyfunction!(steps::_check_transform, module)?)?;
    module.add_function(wrap_pyfunction!(steps::_op_schemas, module)?)?;
    module.add_function(wrap_pyfunction!(steps::_check_batch_transform, module)?)?;
    module.add_function(wrap_pyfunction!(loader::_bytes, module)?)?;
    module.add_class::<writer::PyDatasetWriter>()?;
    module.add_function(wrap_pyfunction!(_main, module)?)?;
    module.add_function(wrap_pyfunction!(command::_run, module)?)?;
    module.add_function(wrap_pyfunction!(command::_command_options, module)?)?;
    Ok(())
}
