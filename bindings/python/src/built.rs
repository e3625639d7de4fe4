//! How the module was built.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How this module was built and what is in it, as ``foldcast info --json`` says it of the command.
#[pyfunction]
pub(crate) fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = foldcast::built::info();
    let dict = PyDict::new(py);
    dict.set_item("version", info.version)?;
    dict.set_item("revision", info.revision)?;
    dict.set_item("target", info.target)?;
    dict.set_item("profile", info.profile)?;
    dict.set_item("kernels", info.kernels)?;
    dict.set_item("kernels_in_use", info.kernels_in_use)?;
    dict.set_item("collectives", info.collectives)?;
    dict.set_item("algorithms", info.algorithms)?;
    Ok(dict)
}
