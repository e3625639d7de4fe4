//! The Python module `foldcast._foldcast`: the numpy face, and the one engine of the process.
//!
//! * `array` turns what a caller gave into buffers, or refuses it;
//! * `pool` keeps the memory of results for the next ones, `arena` makes arrays that other ranks can read;
//! * `fast` takes the arguments of an allreduce without a tuple and a dict;
//! * `call` runs a blocking call with the GIL released, `handle` an asynchronous one; `many` has calls of lists, `moves`
//!   broadcast and allgather;
//! * `state` owns the communicator of the process from `init` to the interpreter's exit;
//! * `product` is the choice of a product, and the table of what each takes;
//! * `built` tells how the module was built;
//! * `strategies` are the split strategies of gradients, by group;
//! * `bridge` is the table of C functions by which the TensorFlow op library reaches the same engine;
//! * `raise` makes Python exceptions of errors; their classes are Python's, in `foldcast/_errors.py`.
//!
//! No Python object is touched without the GIL, and nothing here runs Python code after the interpreter ended.

mod arena;
mod array;
mod bridge;
mod built;
mod call;
mod fast;
mod group;
mod handle;
mod logger;
mod many;
mod moves;
mod pool;
mod product;
mod raise;
mod state;
mod strategies;

use pyo3::prelude::*;

/// The engine of foldcast. Use the package `foldcast`, which documents and re-exports what is here.
#[pymodule]
fn _foldcast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    state::note_main_thread(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("table_version", table::TABLE_VERSION)?;
    module.add_class::<group::Group>()?;
    module.add_class::<handle::Handle>()?;
    module.add_function(wrap_pyfunction!(state::init, module)?)?;
    module.add_function(wrap_pyfunction!(state::is_initialized, module)?)?;
    module.add_function(wrap_pyfunction!(state::rank, module)?)?;
    module.add_function(wrap_pyfunction!(state::size, module)?)?;
    module.add_function(wrap_pyfunction!(state::local_rank, module)?)?;
    module.add_function(wrap_pyfunction!(state::local_size, module)?)?;
    module.add_function(wrap_pyfunction!(state::abort, module)?)?;
    module.add_function(wrap_pyfunction!(state::shutdown, module)?)?;
    module.add_function(wrap_pyfunction!(state::at_exit, module)?)?;
    fast::add::<fast::AllReduce>(module, wrap_pyfunction!(call::allreduce, module)?)?;
    fast::add::<fast::AllReduceAsync>(module, wrap_pyfunction!(call::allreduce_async, module)?)?;
    module.add_function(wrap_pyfunction!(many::allreduce_fused, module)?)?;
    module.add_function(wrap_pyfunction!(many::allreduce_fused_async, module)?)?;
    module.add_function(wrap_pyfunction!(call::barrier, module)?)?;
    module.add_function(wrap_pyfunction!(moves::broadcast, module)?)?;
    module.add_function(wrap_pyfunction!(moves::broadcast_async, module)?)?;
    module.add_function(wrap_pyfunction!(moves::allgather, module)?)?;
    module.add_function(wrap_pyfunction!(moves::allgather_async, module)?)?;
    module.add_function(wrap_pyfunction!(group::new_group, module)?)?;
    module.add_function(wrap_pyfunction!(group::group, module)?)?;
    module.add_function(wrap_pyfunction!(group::shrink, module)?)?;
    module.add_function(wrap_pyfunction!(product::set_product, module)?)?;
    module.add_function(wrap_pyfunction!(product::product, module)?)?;
    module.add_function(wrap_pyfunction!(product::products, module)?)?;
    module.add_function(wrap_pyfunction!(product::check_product, module)?)?;
    module.add_function(wrap_pyfunction!(built::build_info, module)?)?;
    module.add_function(wrap_pyfunction!(strategies::set_split_strategy, module)?)?;
    module.add_function(wrap_pyfunction!(bridge::table_address, module)?)?;
    module.add_function(wrap_pyfunction!(pool::idle, module)?)?;
    module.add_function(wrap_pyfunction!(arena::empty, module)?)?;
    Ok(())
}
