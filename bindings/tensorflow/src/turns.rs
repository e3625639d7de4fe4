//! Refuses a graph whose synchronous calls could wait for each other for ever.
//!
//! A synchronous call keeps a thread of TensorFlow's until it ends. Ranks that start unordered calls in different orders
//! can fill all their threads with calls that wait for calls which find no thread any more. That cannot happen where
//! there is a thread for every call that may be waiting at the same time: then whatever is not waiting finds a thread,
//! so every rank comes to the calls that the others wait for.
//!
//! How many may wait at once is counted before anything waits, when a graph's kernels have been made: calls that run one
//! after the other, which the Python face arranges, count as one; such calls in a loop of v1 as many as iterations may
//! overlap; a node that somebody else has made, whose order is not known, counts by itself. The count is the same on
//! every rank, so that all refuse the graph, with nothing in flight. Each graph counts for itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::status::{Failure, StatusCode};

/// Where a node stands: nodes of one place wait one at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The graph, or the outermost function.
    graph: String,
    name: String,
    /// Iterations of loops that may be there at the same time.
    overlapping: usize,
}

impl Place {
    /// From the attributes `turn` (the number of overlapping iterations, a colon, a name; empty for a node of unknown
    /// order) and `tag` (graphs and functions from the outermost one on), and the name of the node.
    pub(crate) fn new(turn: &str, tag: &str, node: &str) -> Place {
        let graph = tag.split('/').next().unwrap_or_default().to_owned();
        let known = turn.split_once(':').and_then(|(number, name)| Some((number.parse().ok()?, name)));
        let (overlapping, name) = known.map_or_else(|| (1, format!("node {node}")), |(n, name)| (n, name.to_owned()));
        Place { graph, name, overlapping }
    }
}

/// How many kernels each place has.
static PLACES: Mutex<BTreeMap<Place, usize>> = Mutex::new(BTreeMap::new());

/// Threads that may wait; 0 if that is not known.
static THREADS: AtomicUsize = AtomicUsize::new(0);

fn places() -> MutexGuard<'static, BTreeMap<Place, usize>> {
    // The map is whole between any two statements, so a panic elsewhere does not spoil it.
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel was made.
pub(crate) fn enter(place: &Place) {
    *places().entry(place.clone()).or_insert(0) += 1;
}

/// A kernel that has entered is deleted.
pub(crate) fn leave(place: &Place) {
    let mut places = places();
    if let Some(kernels) = places.get_mut(place) {
        *kernels -= 1;
        if *kernels == 0 {
            places.remove(place);
        }
    }
}

/// Says how many of TensorFlow's threads run ops, in the session that has the fewest; 0 if that is not known.
// SAFETY: no other symbol of the process has this name: it carries the library's.
#[unsafe(no_mangle)]
pub extern "C" fn foldcast_tensorflow_set_threads(threads: usize) {
    THREADS.store(threads, Relaxed);
}

/// Whether a call of this place may wait.
///
/// # Errors
/// The graph has more calls that may wait at once than there are threads.
pub(crate) fn check(place: &Place) -> Result<(), Failure> {
    let threads = THREADS.load(Relaxed);
    let places = places();
    let waiting: usize = places.keys().filter(|other| other.graph == place.graph).map(|other| other.overlapping).sum();
    if threads == 0 || waiting <= threads {
        return Ok(());
    }
    let message = format!(
        "allreduce: refused, lest the ranks wait for each other for ever: kernels are synchronous in this TensorFlow, {waiting} \
         calls of this graph may wait at the same time, each on a thread of its own, but a session of this process runs ops \
         on {threads}: give each ConfigProto(inter_op_parallelism_threads={waiting}, use_per_session_threads=True), or let \
         fewer calls wait at once: parallel_iterations=1 in loops, and graphs made in this process, where \
         foldcast.tensorflow.allreduce orders them, instead of imported ones"
    );
    Err(Failure { code: StatusCode::FailedPrecondition, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_needs_a_thread_for_each_place() {
        let place = |turn, tag| Place::new(turn, tag, "r");
        let (chain, looped) = (place("1:", "turns/x"), place("10:while", "turns"));
        let (foreign, other) = (Place::new("", "turns", "r_1"), place("1:", "turns_too"));
        assert_eq!(foreign, Place { graph: "turns".into(), name: "node r_1".into(), overlapping: 1 });
        foldcast_tensorflow_set_threads(1);
        for place in [&chain, &chain, &other] {
            enter(place);
        }
        assert_eq!(check(&chain), Ok(()));
        enter(&foreign);
        let failure = check(&chain).expect_err("two places, one thread");
        assert_eq!(failure.code, StatusCode::FailedPrecondition);
        assert!(failure.message.contains("inter_op_parallelism_threads=2"), "{}", failure.message);
        assert_eq!(check(&other), Ok(()));
        foldcast_tensorflow_set_threads(2);
        assert_eq!(check(&foreign), Ok(()));
        enter(&looped);
        assert!(check(&chain).expect_err("loops overlap").message.contains("12 calls"));
        foldcast_tensorflow_set_threads(0);
        assert_eq!(check(&chain), Ok(()));
        foldcast_tensorflow_set_threads(1);
        for place in [&chain, &foreign, &looped] {
            leave(place);
        }
        assert_eq!(check(&chain), Ok(()));
        leave(&chain);
        leave(&other);
        assert!(places().is_empty());
    }
}
