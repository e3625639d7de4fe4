//! The allreduce of a list of arrays in few launches.
//!
//! A launch costs as much as copying some thousand bytes, and far more where ranks outnumber processors. So
//! arrays of less than [`large_bytes`] are gathered into a stage of at most [`STAGE_BYTES`], which is reduced in one
//! launch and scattered back; a larger array is a launch of its own and is not copied. How the list is cut into launches
//! depends on nothing but the number of ranks and the sizes, of which every launch carries a digest in its fingerprint:
//! so ranks whose lists differ find it in the first launch, before anything is reduced, and each list has at least one.
//!
//! The launches of a list are one call to everything else: they follow each other directly, and if the first fails the
//! others are not begun (engine::Task::next).
//!
//! Bits are those of calls one by one: an element's result depends on nothing but the ranks' elements at its place.

use core::ops::Range;
use std::sync::{Arc, Mutex};

use engine::{Completion, OwnedBuffers, Work};
use shm::MonotonicClock;
use types::error::InvalidArgument;
use types::transport::Clock;
use types::{Buffers, DataType, Error, OpKind, Parts, Reduction, Result};

use crate::blocking::NamedCall;
use crate::group::{CallOptions, Group, GroupShared, lock};
use crate::stage::{STAGE_BYTES, Stage};
use crate::submitted::Submission;

/// Arrays of so many bytes are not copied into a stage, in a group of this many ranks.
///
/// Measured with 160 arrays. Two ranks with a core each: arrays of 1 KiB are 1.8 times as fast through a stage, those of
/// 4 KiB 1.3 times slower, since two ranks fold straight from each other's hands and a launch costs 0.2 us. Four ranks on
/// two cores: arrays of 31 KiB are 1.4 times as fast through a stage, those of 64 KiB no faster, since each launch has
/// several waits.
const fn large_bytes(ranks: usize) -> usize {
    if ranks <= 2 { 2 << 10 } else { 32 << 10 }
}

/// Runs once when all launches of a submitted list have ended, on any thread, with no lock held; gets the buffers back in
/// their order. The error is that of the first launch that failed.
pub type CompletionMany = Box<dyn FnOnce(Result<()>, Vec<Box<dyn OwnedBuffers>>) + Send>;

/// The arrays that one launch reduces, as indices into the list. Only a launch of one array does not go through a stage.
type Launch = Vec<usize>;

/// Cuts a list of arrays of so many bytes into launches.
fn launches(sizes: &[usize], ranks: usize) -> Vec<Launch> {
    let large = large_bytes(ranks);
    let mut launches = Vec::new();
    let (mut stage, mut staged) = (Launch::new(), 0);
    for (at, bytes) in sizes.iter().copied().enumerate().filter(|(_, bytes)| *bytes > 0) {
        if bytes >= large {
            launches.push(vec![at]);
            continue;
        }
        if staged + bytes > STAGE_BYTES {
            launches.push(core::mem::take(&mut stage));
            staged = 0;
        }
        stage.push(at);
        staged += bytes;
    }
    // A list of nothing has a launch too, in which the ranks find out whether they agree.
    if !stage.is_empty() || launches.is_empty() {
        launches.push(stage);
    }
    launches
}

/// Where each array of a launch stands in its stage.
fn places(sizes: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |bytes| {
        let start = end;
        end += bytes;
        start..end
    };
    sizes.into_iter().map(place).collect()
}

/// A list that has been checked.
pub(crate) struct List {
    /// What is done with each buffer: the work for a buffer of no bytes.
    pub(crate) each: Work,
    pub(crate) sizes: Vec<usize>,
    pub(crate) parts: Parts,
    /// Bytes of all of them.
    pub(crate) bytes: usize,
}

impl List {
    fn work(&self, launch: &[usize]) -> Work {
        let bytes = launch.iter().map(|at| self.sizes[*at]).sum();
        self.each.clone().of_bytes(bytes).of_list(self.parts, self.bytes)
    }

    fn places(&self, launch: &[usize]) -> Vec<Range<usize>> {
        places(launch.iter().map(|at| self.sizes[*at]))
    }
}

impl Group {
    /// [`all_reduce`](Self::all_reduce) of each of these buffers, with the same bits as one by one and in few launches:
    /// small buffers are reduced together. All members of the group give lists of the same lengths in the same order.
    ///
    /// # Errors
    /// Every [`Error`]; members whose lists differ get a mismatch in `parts` (or `count`) before anything is reduced. After
    /// an error the content of all outputs is undefined.
    pub fn all_reduce_many(
        &self,
        dtype: DataType,
        reduction: Reduction,
        buffers: &mut [Buffers<'_>],
        options: &CallOptions<'_>,
    ) -> Result<()> {
        self.run_lists(&[self.list(dtype, reduction, options, buffers.iter())?], &mut [buffers], options)
    }

    /// [`all_reduce_many`](Self::all_reduce_many) of several lists, each of a type of its own, one behind the other as one
    /// call: where one fails the others are not begun.
    ///
    /// # Errors
    /// As [`all_reduce_many`](Self::all_reduce_many).
    pub fn all_reduce_lists(
        &self,
        reduction: Reduction,
        lists: &mut [(DataType, Vec<Buffers<'_>>)],
        options: &CallOptions<'_>,
    ) -> Result<()> {
        let list =
            |(dtype, buffers): &(DataType, Vec<Buffers<'_>>)| self.list(*dtype, reduction, options, buffers.iter());
        let checked = lists.iter().map(list).collect::<Result<Vec<_>>>()?;
        let mut buffers: Vec<&mut [Buffers<'_>]> = lists.iter_mut().map(|(_, buffers)| &mut buffers[..]).collect();
        self.run_lists(&checked, &mut buffers, options)
    }

    fn run_lists(&self, lists: &[List], buffers: &mut [&mut [Buffers<'_>]], options: &CallOptions<'_>) -> Result<()> {
        if lists.is_empty() {
            return Ok(());
        }
        let shared = self.shared();
        // The lists are one call: other threads do not get in between, and its deadline is one for all launches.
        let alone = self.size() == 1;
        let begun = MonotonicClock.now();
        let inside = match options.name {
            None if !alone => Some(shared.enter(OpKind::AllReduce, options)?),
            _ => None,
        };
        let begun = inside.as_ref().and_then(|(_, begun)| *begun).or(Some(begun));
        let mut named = options.name.map(NamedCall::of);
        let mut run = |work: &Work, mut buffers: Buffers<'_>, goes_on| match &mut named {
            _ if alone => shared.run_alone(work, &mut buffers),
            None => shared.run_unnamed(work, &mut buffers, options, begun),
            Some(named) => {
                named.goes_on = goes_on;
                shared.run_named(work, named, buffers, options, begun)
            }
        };
        let cut = lists.iter().enumerate().flat_map(|(number, list)| {
            launches(&list.sizes, self.size()).into_iter().map(move |launch| (number, list, launch))
        });
        let mut cut = cut.peekable();
        while let Some((number, list, launch)) = cut.next() {
            let (work, goes_on, buffers) = (list.work(&launch), cut.peek().is_some(), &mut *buffers[number]);
            if let [at] = launch[..] {
                run(&work, buffers[at].reborrow(), goes_on)?;
                continue;
            }
            let mut stage = Stage::take(&shared.world, work.bytes());
            let places = list.places(&launch);
            for (at, place) in launch.iter().zip(&places) {
                stage.bytes()[place.clone()].copy_from_slice(buffers[*at].input());
            }
            run(&work, Buffers::InPlace(stage.bytes()), goes_on)?;
            for (at, place) in launch.iter().zip(places) {
                buffers[*at].output(0..place.len()).copy_from_slice(&stage.bytes()[place]);
            }
        }
        Ok(())
    }

    /// Submits [`all_reduce_many`](Self::all_reduce_many); never blocks, but copies the small inputs into a stage on the
    /// calling thread. `done` runs exactly once, when all is done. It is the same call as the blocking one: some ranks may
    /// wait and others submit.
    ///
    /// # Errors
    /// What can be refused at once: nothing was submitted then and `done` is dropped.
    pub fn all_reduce_many_async(
        &self,
        dtype: DataType,
        reduction: Reduction,
        buffers: Vec<Box<dyn OwnedBuffers>>,
        options: &CallOptions<'_>,
        done: CompletionMany,
    ) -> Result<()> {
        self.all_reduce_lists_async(reduction, vec![(dtype, buffers)], options, done)
    }

    /// [`all_reduce_many_async`](Self::all_reduce_many_async) of several lists, each of a type of its own, one behind the
    /// other as one call: where one fails the others are not begun. `done` gets the buffers of all, in their order. It is the
    /// same call as [`all_reduce_lists`](Self::all_reduce_lists).
    ///
    /// # Errors
    /// As [`all_reduce_many_async`](Self::all_reduce_many_async).
    pub fn all_reduce_lists_async(
        &self,
        reduction: Reduction,
        lists: Vec<(DataType, Vec<Box<dyn OwnedBuffers>>)>,
        options: &CallOptions<'_>,
        done: CompletionMany,
    ) -> Result<()> {
        let mut checked = Vec::with_capacity(lists.len());
        for (dtype, mut buffers) in lists {
            let borrowed: Vec<_> = buffers.iter_mut().map(|buffers| buffers.buffers()).collect();
            let list = self.list(dtype, reduction, options, borrowed.iter())?;
            drop(borrowed);
            checked.push((list, buffers));
        }
        self.submit_lists(checked, options, done)
    }

    /// Submits the launches of checked lists.
    pub(crate) fn submit_lists(
        &self,
        lists: Vec<(List, Vec<Box<dyn OwnedBuffers>>)>,
        options: &CallOptions<'_>,
        done: CompletionMany,
    ) -> Result<()> {
        if lists.is_empty() {
            done(Ok(()), Vec::new());
            return Ok(());
        }
        let cut: Vec<Vec<Launch>> = lists.iter().map(|(list, _)| launches(&list.sizes, self.size())).collect();
        let left = cut.iter().map(Vec::len).sum();
        let number = lists.iter().map(|(_, buffers)| buffers.len()).sum();
        let slots: Vec<Option<Box<dyn OwnedBuffers>>> = core::iter::repeat_with(|| None).take(number).collect();
        let batch = Arc::new(Batch { state: Mutex::new((Ok(()), left, slots, Some(done))) });
        let (mut submissions, mut first) = (Vec::with_capacity(left), 0);
        for ((list, buffers), launches) in lists.into_iter().zip(&cut) {
            let number = buffers.len();
            let mut buffers: Vec<_> = buffers.into_iter().map(Some).collect();
            for launch in launches {
                let take = |at: &usize| (first + at, buffers[*at].take().expect("each array is in at most one launch"));
                let members = launch.iter().map(take).collect();
                submissions.push(self.submission(&batch, &list, launch, members));
            }
            // Those without bytes are in no launch.
            batch.keep(first, buffers);
            first += number;
        }
        GroupShared::submit_list(self.shared(), submissions, options)
    }

    fn submission(&self, batch: &Arc<Batch>, list: &List, launch: &[usize], members: Vec<Placed>) -> Submission {
        let batch = Arc::clone(batch);
        let work = list.work(launch);
        let (buffers, done) = match <[_; 1]>::try_from(members) {
            Ok([(at, buffers)]) => batch.alone(at, buffers),
            Err(members) => {
                batch.together(Stage::take(&self.shared().world, work.bytes()), list.places(launch), members)
            }
        };
        Submission { work, buffers, done }
    }

    fn list<'a, 'b: 'a>(
        &self,
        dtype: DataType,
        reduction: Reduction,
        options: &CallOptions<'_>,
        buffers: impl Iterator<Item = &'a Buffers<'b>>,
    ) -> Result<List> {
        let mut sizes = Vec::new();
        for (at, buffers) in buffers.enumerate() {
            let work = Work::all_reduce(dtype, reduction, buffers.len());
            self.shared().check(&work, buffers).map_err(|error| of_member(error, at))?;
            sizes.push(buffers.len());
        }
        let each = Work::all_reduce(dtype, reduction, 0);
        self.shared().check(&each, &Buffers::InPlace(&mut []))?;
        let counts: Vec<usize> = sizes.iter().map(|bytes| bytes / dtype.size()).collect();
        let parts = Parts::of(&counts);
        let parts = if options.agreed == 0 { parts } else { parts.and(options.agreed) };
        let bytes = sizes.iter().sum();
        Ok(List { each, parts, bytes, sizes })
    }
}

/// Says which of the buffers is wrong.
pub(crate) fn of_member(error: Error, at: usize) -> Error {
    match error {
        Error::InvalidArgument(invalid) => {
            let field = format!("{} {at} of the list", invalid.field);
            Error::InvalidArgument(Box::new(InvalidArgument { field, ..*invalid }))
        }
        other => other,
    }
}

/// The first error, the launches that are still to end, the buffers that are back, and what to run in the end.
type State = (Result<()>, usize, Vec<Option<Box<dyn OwnedBuffers>>>, Option<CompletionMany>);

/// An array and its place in the lists.
type Placed = (usize, Box<dyn OwnedBuffers>);

/// The launches of submitted lists.
struct Batch {
    state: Mutex<State>,
}

impl Batch {
    /// Takes back arrays that no launch needs; the first of them has this place.
    fn keep(&self, first: usize, arrays: Vec<Option<Box<dyn OwnedBuffers>>>) {
        let mut state = lock(&self.state);
        for (slot, array) in state.2[first..].iter_mut().zip(arrays) {
            *slot = array;
        }
    }

    /// A launch of one array.
    fn alone(self: Arc<Batch>, at: usize, buffers: Box<dyn OwnedBuffers>) -> (Box<dyn OwnedBuffers>, Completion) {
        (buffers, Box::new(move |result, buffers| self.end(result, [(at, buffers)])))
    }

    /// A launch of several arrays, which stand at these places of the stage.
    fn together(
        self: Arc<Batch>,
        mut stage: Stage,
        places: Vec<Range<usize>>,
        mut members: Vec<Placed>,
    ) -> (Box<dyn OwnedBuffers>, Completion) {
        for ((_, member), place) in members.iter_mut().zip(&places) {
            stage.bytes()[place.clone()].copy_from_slice(member.buffers().input());
        }
        let done = move |result: Result<()>, mut stage: Box<dyn OwnedBuffers>| {
            if result.is_ok() {
                let reduced = stage.buffers();
                for ((_, member), place) in members.iter_mut().zip(places) {
                    member.buffers().output(0..place.len()).copy_from_slice(&reduced.input()[place]);
                }
            }
            drop(stage);
            self.end(result, members);
        };
        (Box::new(stage), Box::new(done))
    }

    fn end(&self, result: Result<()>, members: impl IntoIterator<Item = Placed>) {
        let mut state = lock(&self.state);
        let (outcome, left, slots, done) = &mut *state;
        for (at, buffers) in members {
            slots[at] = Some(buffers);
        }
        if outcome.is_ok() {
            *outcome = result;
        }
        *left -= 1;
        if *left > 0 {
            return;
        }
        let buffers = slots.drain(..).flatten().collect();
        let (outcome, done) = (core::mem::replace(outcome, Ok(())), done.take());
        drop(state);
        if let Some(done) = done {
            done(outcome, buffers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_by_sizes_and_ranks_alone() {
        for ranks in [1, 2, 3, 8] {
            let (large, most) = (large_bytes(ranks), large_bytes(ranks) - 4);
            let per_stage = STAGE_BYTES / most;
            let table: [(Vec<usize>, Vec<Launch>); 7] = [
                (vec![], vec![vec![]]),
                (vec![0, 0], vec![vec![]]),
                (vec![4; 5], vec![vec![0, 1, 2, 3, 4]]),
                (vec![4, 0, large, 8, 4 * large, 0, most], vec![vec![2], vec![4], vec![0, 3, 6]]),
                (vec![large], vec![vec![0]]),
                (vec![0, 4], vec![vec![1]]),
                (vec![most; per_stage + 1], vec![(0..per_stage).collect(), vec![per_stage]]),
            ];
            for (sizes, wanted) in table {
                assert_eq!(launches(&sizes, ranks), wanted, "{sizes:?}");
            }
        }
    }
}
