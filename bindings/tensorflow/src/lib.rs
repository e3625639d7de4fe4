//! The TensorFlow op library: the ops `HcomAllReduce`, `HcomBroadcast` and `HcomAllGather` and their asynchronous CPU kernels.
//!
//! Everything goes through TensorFlow's C API, whose functions are looked up in the TensorFlow that the process has
//! already loaded: no TensorFlow headers, no C++ source and no link-time dependency. What the C API of old releases
//! lacks is reached by the C++ functions that they export (`cxx`), or done without. The engine is not in here either. It
//! lives in the Python module, which hands over a table of functions (`attach`); until then the op can be put into
//! graphs, and fails with a message when it runs.
//!
//! | module | what is in it |
//! |---|---|
//! | `api` | TensorFlow's functions by name |
//! | `status`, `tensor`, `context` | safe handles around TensorFlow's objects |
//! | `cxx` | TensorFlow's C++ functions by name, for releases whose C API lacks asynchronous kernels and more |
//! | `cxx_grappler` | fusion where TensorFlow's optimiser takes no plugins, in 1.15 |
//! | `wire`, `node_def` | the encoding of graphs and their nodes |
//! | `done` | the completion callback of an asynchronous kernel, moved off its caller's stack |
//! | `registration`, `shapes` | op definitions, kernel registration; shape functions |
//! | `attributes` | the op's attributes, read and checked |
//! | `tag` | what calls of different ranks are matched by |
//! | `turns` | synchronous calls that could wait for each other for ever |
//! | `unnamed` | eager calls of several threads, which would cross |
//! | `call` | one call of an op: input, output, submission, completion |
//! | `kernel`, `fused`, `broadcast`, `gather` | the ops: allreduce of one tensor or a list, broadcast, allgather |
//! | `graph`, `control_flow`, `planning`, `rewrite` | fusion: a graph, what runs together, what is fused, the new graph |
//! | `plugin`, `report` | fusion as a plugin of TensorFlow's graph optimiser, and what it has done |
//! | `attach` | the engine's table |
//!
//! TensorFlow must be the first to open this library (`tf.load_op_library`): it collects the ops that register
//! themselves while it opens a library, and a library that is open already registers nothing any more.

mod api;
mod attach;
mod attributes;
mod broadcast;
mod call;
mod context;
mod control_flow;
mod counters;
mod cxx;
mod cxx_grappler;
mod done;
mod fused;
#[cfg(test)]
mod fusion_tests;
mod gather;
mod graph;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod kernel;
mod node_def;
mod planning;
mod plugin;
mod registration;
mod report;
mod rewrite;
mod shapes;
mod status;
mod tag;
mod tensor;
mod turns;
mod unnamed;
mod wire;

pub use attach::foldcast_tensorflow_attach;
pub use counters::{Counters, foldcast_tensorflow_counters};
pub use plugin::{foldcast_tensorflow_enable_fusion, foldcast_tensorflow_set_fusion};
pub use registration::{foldcast_tensorflow_lacks, foldcast_tensorflow_problem};
pub use report::foldcast_tensorflow_fusion_report;
pub use turns::foldcast_tensorflow_set_threads;
