//! Moves that are more than one call: the broadcast of a list of arrays, and the allgather of contributions whose lengths
//! the ranks do not know of each other yet.

use std::sync::{Arc, Mutex};

use engine::OwnedBuffers;
use types::{Buffers, DataType, OpKind, Parts, Rank, Result};

use crate::element::{bytes_of, bytes_of_mut};
use crate::fused::{CompletionMany, List, of_member};
use crate::group::{CallOptions, Group, lock};

/// Gets one number of each member, in the order of the group, and gives the number of elements of each member's
/// contribution with the buffers for the allgather. An error ends the call, on this rank alone.
pub type Place = Box<dyn FnOnce(&[u64]) -> Result<(Vec<usize>, Box<dyn OwnedBuffers>)> + Send>;

/// Runs once when an allgather that exchanges sizes has ended, on any thread, with no lock held; gets the buffers back.
pub type Finish = Box<dyn FnOnce(Result<Box<dyn OwnedBuffers>>) + Send>;

/// What runs once, whoever comes to it first.
type Once<T> = Arc<Mutex<Option<T>>>;

/// One number of each rank.
struct Sizes {
    own: [u64; 1],
    all: Vec<u64>,
}

impl OwnedBuffers for Sizes {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: bytes_of(&self.own), output: bytes_of_mut(&mut self.all) }
    }
}

impl Group {
    /// Submits a [`broadcast`](Self::broadcast) of each of these buffers, whose types may differ: one call to all others,
    /// in few launches, since small buffers travel together. All members give lists of the same lengths and types in the
    /// same order. `done` runs exactly once, when all is done, and gets the buffers back in their order. Never blocks, but
    /// copies small inputs on the calling thread.
    ///
    /// # Errors
    /// What can be refused at once: nothing was submitted then and `done` is dropped. Members whose lists differ get a
    /// mismatch in `parts`, `dtype` or `count` before anything is moved.
    pub fn broadcast_many_async(
        &self,
        root: Rank,
        mut list: Vec<(DataType, Box<dyn OwnedBuffers>)>,
        options: &CallOptions<'_>,
        done: CompletionMany,
    ) -> Result<()> {
        let (mut sizes, mut digested) = (Vec::new(), Vec::new());
        for (at, (dtype, buffers)) in list.iter_mut().enumerate() {
            let buffers = buffers.buffers();
            self.broadcast_work(*dtype, root, &buffers).map_err(|error| of_member(error, at))?;
            sizes.push(buffers.len());
            digested.extend([usize::from(dtype.code()), buffers.len() / dtype.size()]);
        }
        // What is of several types travels as bytes.
        let first = list.first().map_or(DataType::Uint8, |(dtype, _)| *dtype);
        let dtype = if list.iter().all(|(dtype, _)| *dtype == first) { first } else { DataType::Uint8 };
        let each = self.broadcast_work(dtype, root, &Buffers::InPlace(&mut []))?;
        let number = u32::try_from(list.len()).unwrap_or(u32::MAX);
        let bytes = sizes.iter().sum();
        let list_of = List { each, bytes, sizes, parts: Parts { number, ..Parts::of(&digested) } };
        let buffers = list.into_iter().map(|(_, buffers)| buffers).collect();
        self.submit_lists(vec![(list_of, buffers)], options, done)
    }

    /// Submits an [`all_gather_unequal`](Self::all_gather_unequal) of contributions whose lengths the members do not know
    /// of each other: first each member's `size` is exchanged, then `place` finds room for that, then the contributions
    /// are. Never blocks; `place` and `done` run on any thread. If this returns an error, neither has run.
    ///
    /// Unnamed, it leaves no room for other unnamed calls of the group until it has ended, because its second call is made
    /// then: named, the two are told apart. Each of its two calls may take as long as the options say.
    ///
    /// # Errors
    /// What can be refused at once: nothing was submitted then and `done` is dropped.
    pub fn all_gather_exchanging_async(
        &self,
        dtype: DataType,
        size: u64,
        options: &CallOptions<'_>,
        place: Place,
        done: Finish,
    ) -> Result<()> {
        let (group, timeout) = (self.clone(), options.timeout);
        let name = options.name.map(str::to_owned);
        // Calls of one name may overlap; then the sizes of the one must not meet the data of the other.
        let sizes_name = name.as_ref().map(|name| format!("{name} sizes"));
        let sizes = Sizes { own: [size], all: vec![0; self.size()] };
        let exchanged = move |outcome: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
            let done: Once<Finish> = Arc::new(Mutex::new(Some(done)));
            let options = CallOptions { name: name.as_deref(), timeout, ..CallOptions::default() };
            let begun = outcome.and_then(|()| place(&numbers(&mut buffers.buffers())));
            let begun = begun.and_then(|(counts, buffers)| {
                let done = Arc::clone(&done);
                let ended = move |outcome: Result<()>, buffers| finish(&done, outcome.map(|()| buffers));
                group.all_gather_unequal_async(dtype, &counts, buffers, &options, Box::new(ended))
            });
            if let Err(error) = begun {
                finish(&done, Err(error));
            }
        };
        let options = CallOptions { name: sizes_name.as_deref(), timeout, ..CallOptions::default() };
        self.check_member(OpKind::AllGather)?;
        self.all_gather_async(DataType::Uint64, Box::new(sizes), &options, Box::new(exchanged))
    }

    fn check_member(&self, kind: OpKind) -> Result<()> {
        self.rank().map(|_| ()).ok_or_else(|| self.shared().not_a_member(kind))
    }
}

fn finish(done: &Once<Finish>, outcome: Result<Box<dyn OwnedBuffers>>) {
    let done = lock(done).take();
    if let Some(done) = done {
        done(outcome);
    }
}

/// What an exchange of sizes has brought.
fn numbers(buffers: &mut Buffers<'_>) -> Vec<u64> {
    let all = 0..buffers.output_len();
    let words = buffers.output(all).as_chunks::<8>().0;
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}
