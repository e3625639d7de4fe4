//! The TensorFlow op library: the op `HcomAllReduce` and its asynchronous CPU kernel.
//!
//! Everything goes through TensorFlow's C API, whose functions are looked up in the TensorFlow that the process has
//! already loaded: no TensorFlow headers, no C++ and no link-time dependency. The engine is not in here either. It
//! lives in the Python module, which hands over a table of functions (`attach`); until then the op can be put into
//! graphs, and fails with a message when it runs.
//!
//! | module | what is in it |
//! |---|---|
//! | `api` | TensorFlow's functions by name |
//! | `status`, `tensor`, `context` | safe handles around TensorFlow's objects |
//! | `done` | the completion callback of an asynchronous kernel, moved off its caller's stack |
//! | `registration` | op definition, shape function, kernel registration |
//! | `attributes` | the op's attributes, read and checked |
//! | `tag` | what calls of different ranks are matched by |
//! | `unnamed` | eager calls of several threads, which would cross |
//! | `kernel` | one call: input, output, submission, completion |
//! | `attach` | the engine's table |
//!
//! TensorFlow must be the first to open this library (`tf.load_op_library`): it collects the ops that register
//! themselves while it opens a library, and a library that is open already registers nothing any more.

mod api;
mod attach;
mod attributes;
mod context;
mod counters;
mod done;
mod kernel;
mod registration;
mod status;
mod tag;
mod tensor;
mod unnamed;

pub use attach::foldcast_tensorflow_attach;
pub use counters::{Counters, foldcast_tensorflow_counters};
pub use registration::foldcast_tensorflow_problem;
