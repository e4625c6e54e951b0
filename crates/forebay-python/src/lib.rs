//! The extension module `forebay._forebay`.

use pyo3::prelude::*;

#[pymodule]
fn _forebay(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
