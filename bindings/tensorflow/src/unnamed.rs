//! Keeps unnamed calls of several threads apart.
//!
//! Unnamed calls meet by their number, so the ranks must make them in one order. A thread that runs TensorFlow eagerly
//! is inside one call at a time; two such calls of one group at once come from two threads, whose order another rank
//! may see the other way round. That would cross their sums, so the second one is an error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::attributes::Attributes;
use crate::status::Failure;

/// The groups in which a thread of this process is inside an unnamed call. A handful at most: a list will do.
static INSIDE: Mutex<Vec<Arc<Attributes>>> = Mutex::new(Vec::new());

fn inside() -> MutexGuard<'static, Vec<Arc<Attributes>>> {
    // The list is whole between any two statements, so a panic elsewhere does not spoil it.
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to be inside an unnamed call of a group; ends when it is dropped.
pub(crate) struct Turn {
    attributes: Arc<Attributes>,
}

impl Turn {
    /// Enters an unnamed call.
    pub(crate) fn enter(attributes: &Arc<Attributes>) -> Result<Turn, Failure> {
        let mut inside = inside();
        if inside.iter().any(|other| other.group == attributes.group) {
            return Err(Failure::invalid(format!(
                "{} on group '{}': expected one eager call at a time, got one while another thread is inside one: \
                 eager calls meet those of the other ranks by their order, which two threads leave open; make them in a \
                 tf.function or a graph, whose ops have names, or one after the other",
                attributes.kind.verb(),
                attributes.group
            )));
        }
        inside.push(Arc::clone(attributes));
        Ok(Turn { attributes: Arc::clone(attributes) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut inside = inside();
        if let Some(at) = inside.iter().position(|other| Arc::ptr_eq(other, &self.attributes)) {
            inside.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::tests::good;

    #[test]
    fn one_call_of_a_group_at_a_time() {
        let first = good().check().expect("nothing is wrong");
        let again = good().check().expect("nothing is wrong");
        let other = crate::attributes::Raw { group: "other".into(), ..good() }.check().expect("nothing is wrong");
        let turn = Turn::enter(&first).expect("nobody is inside");
        let beside = Turn::enter(&other).expect("groups are independent");
        let failure = Turn::enter(&again).err().expect("somebody is inside");
        assert!(failure.message.contains("another thread"), "{}", failure.message);
        drop(turn);
        drop(Turn::enter(&again).expect("nobody is inside any more"));
        drop(beside);
        assert!(inside().is_empty());
    }
}
