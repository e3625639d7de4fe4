//! The protocol under all interleavings and all orders of memory that its atomics allow, over the crate's own doors,
//! headers and layout.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p foldcast-shm --release --test loom`

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use foldcast_shm::door::{Door, publish_fence};
use foldcast_shm::founding::{self, Founding};
use foldcast_shm::header::Header;
use foldcast_shm::layout::Layout;
use foldcast_shm::primitive::{AtomicU32, AtomicU64, Futex, Ordering, fence};
use foldcast_shm::record::{Record, Stage};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use types::transport::{Channel, Geometry};

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(run);
}

// ---- Doors -----------------------------------------------------------------------------------------------------

/// Something that a peer provides, and the door of whoever waits for it.
#[derive(Default)]
struct Errand {
    done: AtomicU32,
    door: Door,
}

impl Errand {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0
    }

    fn provide(&self) {
        self.done.store(1, Ordering::Release);
        publish_fence();
        self.door.ring();
    }

    fn wait(&self) {
        while !self.is_done() {
            let _ = self.door.sleep(None, &|| self.is_done());
        }
    }
}

/// A lost wake-up is a deadlock: the sleeps have no limit.
#[test]
fn no_wake_up_is_lost() {
    model(4, || {
        let errand = Arc::new(Errand::default());
        let provider = Arc::clone(&errand);
        let provider = thread::spawn(move || provider.provide());
        errand.wait();
        provider.join().unwrap();
    });
}

#[test]
fn all_threads_at_one_door_wake() {
    model(3, || {
        let errand = Arc::new(Errand::default());
        let others: Vec<_> = [false, true]
            .into_iter()
            .map(|provides| {
                let errand = Arc::clone(&errand);
                thread::spawn(move || if provides { errand.provide() } else { errand.wait() })
            })
            .collect();
        errand.wait();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn two_ranks_wake_each_other_in_turns() {
    model(3, || {
        let errands = Arc::new([Errand::default(), Errand::default()]);
        let peer = Arc::clone(&errands);
        let peer = thread::spawn(move || {
            peer[0].provide();
            peer[1].wait();
        });
        errands[0].wait();
        errands[1].provide();
        peer.join().unwrap();
    });
}

/// The model can tell: without the fences a wake-up is lost.
#[test]
#[should_panic(expected = "deadlock")]
fn without_fences_a_wake_up_is_lost() {
    #[derive(Default)]
    struct Careless {
        done: AtomicU32,
        sleepers: AtomicU32,
        word: Futex,
    }
    model(3, || {
        let errand = Arc::new(Careless::default());
        let provider = Arc::clone(&errand);
        thread::spawn(move || {
            provider.done.store(1, Ordering::Release);
            if provider.sleepers.load(Ordering::Relaxed) != 0 {
                provider.word.advance();
                provider.word.wake_all();
            }
        });
        while errand.done.load(Ordering::Acquire) == 0 {
            let seen = errand.word.value();
            errand.sleepers.fetch_add(1, Ordering::AcqRel);
            if errand.done.load(Ordering::Acquire) == 0 {
                let _ = errand.word.wait(seen, None);
            }
            errand.sleepers.fetch_sub(1, Ordering::Release);
        }
    });
}

// ---- Headers and buffers that change hands -----------------------------------------------------------------------

const CHANNEL: Channel = Channel::Unnamed;
const DEPTH: usize = 2;

/// A call: how many chunks it hands over (none: its payload is in the slot), and what each rank believes it is.
#[derive(Clone, Copy)]
struct Call {
    chunks: u64,
    hashes: [u64; 2],
}

const fn good(chunks: u64) -> Call {
    Call { chunks, hashes: [7, 7] }
}

const fn mismatched(chunks: u64) -> Call {
    Call { chunks, hashes: [7, 8] }
}

/// What a rank leaves out, to see that the model notices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Omission {
    Nothing,
    Verdict,
    OwnSide,
}

/// The memory that two ranks share. Data are cells that loom watches for races; they lie where the layout says.
struct Memory {
    layout: Layout,
    headers: BTreeMap<usize, Header>,
    cells: BTreeMap<usize, UnsafeCell<u64>>,
    staged: [AtomicU64; 2],
    verdicts: [AtomicU64; 2],
    descriptions: [UnsafeCell<u64>; 2],
}

impl Memory {
    fn new() -> Memory {
        let geometry = Geometry { ranks: 2, slot_bytes: 64, chunk_bytes: 64, pair_depth: DEPTH };
        let layout = Layout::new(geometry, 1).unwrap();
        let slots = [1, 2].map(|sequence| layout.slot(CHANNEL, 0, sequence));
        let pairs = (0..4).map(|turn| layout.pair(CHANNEL, 0, 1, turn));
        Memory {
            headers: slots.into_iter().map(|at| (at, Header::default())).collect(),
            cells: slots.into_iter().chain(pairs).map(|at| (at, UnsafeCell::new(0))).collect(),
            staged: Default::default(),
            verdicts: Default::default(),
            descriptions: [UnsafeCell::new(0), UnsafeCell::new(0)],
            layout,
        }
    }

    fn write(&self, at: usize, value: u64) {
        // SAFETY: loom checks that nobody else has access at the same time.
        self.cells[&at].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, at: usize) -> u64 {
        // SAFETY: loom checks that nobody writes at the same time.
        self.cells[&at].with(|cell| unsafe { *cell })
    }
}

fn wait_until(ready: impl Fn() -> bool) {
    while !ready() {
        thread::yield_now();
    }
}

struct Member {
    memory: Arc<Memory>,
    rank: usize,
    sequence: u64,
    /// Uses of the pair buffers so far.
    turn: u64,
    /// Payloads in slots so far.
    slots: u64,
    omission: Omission,
}

impl Member {
    const fn peer(&self) -> usize {
        1 - self.rank
    }

    fn content(rank: usize, sequence: u64, chunk: u64) -> u64 {
        sequence * 100 + chunk * 10 + u64::try_from(rank).unwrap()
    }

    fn stage(&self, chunk: u64) {
        let Memory { layout, staged, .. } = &*self.memory;
        let turn = self.turn + chunk;
        let at = match self.omission {
            // Always the same side: the buffers do not change hands.
            Omission::OwnSide => layout.pair(CHANNEL, self.rank, self.peer(), turn % 2),
            _ => layout.pair(CHANNEL, self.rank, self.peer(), turn),
        };
        self.memory.write(at, Member::content(self.rank, self.sequence, chunk));
        staged[self.rank].store(turn + 1, Ordering::Release);
    }

    fn call(&mut self, call: Call) {
        self.sequence += 1;
        let (memory, peer, sequence) = (Arc::clone(&self.memory), self.peer(), self.sequence);
        let hash = call.hashes[self.rank];
        let own_slot = memory.layout.slot(CHANNEL, self.rank, sequence);
        let peer_slot = memory.layout.slot(CHANNEL, peer, sequence);
        // SAFETY: loom checks that nobody else has access at the same time.
        memory.descriptions[self.rank].with_mut(|cell| unsafe { *cell = hash });
        let lead = call.chunks.min(2);
        (0..lead).for_each(|chunk| self.stage(chunk));
        if call.chunks == 0 {
            memory.write(memory.layout.slot(CHANNEL, self.rank, self.slots), Member::content(self.rank, sequence, 0));
        }
        memory.headers[&own_slot].publish(sequence, hash);
        wait_until(|| memory.headers[&peer_slot].read(sequence).is_some());
        if memory.headers[&peer_slot].read(sequence) != Some(hash) {
            return self.give_up(call);
        }
        if call.chunks == 0 {
            assert_eq!(memory.read(memory.layout.slot(CHANNEL, peer, self.slots)), Member::content(peer, sequence, 0));
            self.slots += 1;
        }
        for chunk in 0..call.chunks {
            let turn = self.turn + chunk;
            wait_until(|| memory.staged[peer].load(Ordering::Acquire) > turn);
            let at = match self.omission {
                Omission::OwnSide => memory.layout.pair(CHANNEL, peer, self.rank, turn % 2),
                _ => memory.layout.pair(CHANNEL, peer, self.rank, turn),
            };
            assert_eq!(memory.read(at), Member::content(peer, sequence, chunk));
            // Its buffer is read: it is this rank's to write now.
            if chunk + lead < call.chunks {
                self.stage(chunk + lead);
            }
        }
        self.turn += call.chunks;
    }

    /// Nothing was reduced: everything is as before the call, on both ranks, before either goes on.
    fn give_up(&self, call: Call) {
        let memory = &self.memory;
        // SAFETY: loom checks that nobody writes at the same time.
        let described = memory.descriptions[self.peer()].with(|cell| unsafe { *cell });
        assert_eq!(described, call.hashes[self.peer()]);
        if self.omission == Omission::Verdict {
            return;
        }
        memory.staged[self.rank].store(self.turn, Ordering::Relaxed);
        memory.verdicts[self.rank].store(self.sequence, Ordering::Release);
        wait_until(|| memory.verdicts[self.peer()].load(Ordering::Acquire) >= self.sequence);
    }
}

fn calls<const N: usize>(preemptions: usize, omission: Omission, calls: [Call; N]) {
    model(preemptions, move || {
        let memory = Arc::new(Memory::new());
        let member = |rank| Member { memory: Arc::clone(&memory), rank, sequence: 0, turn: 0, slots: 0, omission };
        let (mut own, mut peer) = (member(0), member(1));
        let peer = thread::spawn(move || calls.iter().for_each(|call| peer.call(*call)));
        calls.iter().for_each(|call| own.call(*call));
        peer.join().unwrap();
    });
}

#[test]
fn small_calls_hand_over() {
    calls(3, Omission::Nothing, [good(0), good(0), good(0), good(0)]);
}

#[test]
fn large_calls_hand_over() {
    calls(3, Omission::Nothing, [good(3), good(1), good(2)]);
}

#[test]
fn small_and_large_calls_follow_each_other() {
    calls(3, Omission::Nothing, [good(1), good(0), good(3), good(0)]);
}

#[test]
fn after_a_mismatch_small_calls_go_on() {
    calls(3, Omission::Nothing, [good(0), mismatched(0), good(0), good(0)]);
}

#[test]
fn after_a_mismatch_large_calls_go_on_with_the_same_buffers() {
    calls(3, Omission::Nothing, [good(1), mismatched(2), good(3)]);
    calls(3, Omission::Nothing, [mismatched(2), mismatched(1), good(2)]);
}

/// The model can tell: without the verdicts a rank describes its next call while the other still reads of this one.
#[test]
#[should_panic(expected = "Causality violation")]
fn without_verdicts_ranks_run_apart() {
    calls(3, Omission::Verdict, [mismatched(0), good(0)]);
}

/// The model can tell: a rank that keeps its side would overwrite what its peer has not read yet.
#[test]
#[should_panic]
fn without_changing_hands_data_are_overwritten() {
    calls(3, Omission::OwnSide, [good(3), good(3)]);
}

/// Fences order what relaxed stores alone do not: the base on which doors rest.
#[test]
fn of_two_fenced_ranks_one_sees_the_other() {
    model(4, || {
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let look = |words: &[AtomicU32; 2], own: usize| {
            words[own].store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            words[1 - own].load(Ordering::Relaxed)
        };
        let peer = Arc::clone(&words);
        let peer = thread::spawn(move || look(&peer, 1));
        let own = look(&words, 0);
        assert!(own == 1 || peer.join().unwrap() == 1);
    });
}

// ---- Offers ------------------------------------------------------------------------------------------------------

/// Two ranks make calls with offers while their monitors map arenas: each says in its slot what it has seen of that, and goes the
/// way that follows from what both have said. Returns the ways of each.
fn ways(memory: &Arc<Memory>, mapped: &Arc<[AtomicU32; 2]>, rank: usize, looks_again: bool) -> [bool; 2] {
    [1, 2].map(|sequence| {
        let look = || mapped[rank].load(Ordering::Acquire) != 0;
        let [own, other] = [rank, 1 - rank].map(|owner| memory.layout.slot(CHANNEL, owner, sequence));
        let said = look();
        memory.write(own, u64::from(said));
        memory.headers[&own].publish(sequence, 7);
        wait_until(|| memory.headers[&other].read(sequence).is_some());
        let heard = memory.read(other) != 0;
        heard && if looks_again { look() } else { said }
    })
}

fn ranks_agree(looks_again: bool) {
    model(3, move || {
        let memory = Arc::new(Memory::new());
        let mapped = Arc::new([AtomicU32::new(0), AtomicU32::new(1)]);
        let monitor = {
            let mapped = Arc::clone(&mapped);
            thread::spawn(move || mapped[0].store(1, Ordering::Release))
        };
        let peer = {
            let (memory, mapped) = (Arc::clone(&memory), Arc::clone(&mapped));
            thread::spawn(move || ways(&memory, &mapped, 1, looks_again))
        };
        let own = ways(&memory, &mapped, 0, looks_again);
        assert_eq!(own, peer.join().unwrap(), "the ranks go different ways");
        monitor.join().unwrap();
    });
}

#[test]
fn ranks_go_the_same_way_whenever_arenas_are_mapped() {
    ranks_agree(false);
}

/// The model can tell: who looks again, after it has said what it saw, goes another way than the others.
#[test]
#[should_panic(expected = "the ranks go different ways")]
fn whoever_looks_again_goes_another_way() {
    ranks_agree(true);
}

// ---- The founding of a group -------------------------------------------------------------------------------------

struct Place {
    lines: [AtomicU64; 2],
    word: AtomicU64,
    brought: [UnsafeCell<u32>; 2],
    reason: UnsafeCell<u32>,
}

/// Two members arrive; each founds the group if it sees both, and one of them gives it up if it does not. What a member wrote
/// before it arrived, or before it gave up, is read by whoever acts on it.
fn found_or_give_up(atomically: bool) {
    model(3, move || {
        let lines = [AtomicU64::new(0), AtomicU64::new(0)];
        let brought = [UnsafeCell::new(0), UnsafeCell::new(0)];
        let place = Arc::new(Place { lines, word: AtomicU64::new(0), brought, reason: UnsafeCell::new(0) });
        let peer = Arc::clone(&place);
        let peer = thread::spawn(move || take_part(&peer, 1, atomically));
        let outcome = take_part(&place, 0, atomically);
        assert_eq!(peer.join().unwrap(), outcome, "both see the same");
    });
}

fn take_part(place: &Place, own: usize, atomically: bool) -> Founding {
    // SAFETY: its own until it has arrived.
    place.brought[own].with_mut(|cell| unsafe { *cell = 7 });
    founding::arrive(&place.lines[own], 0);
    let outcome = if founding::has_arrived(&place.lines[1 - own], 0) {
        if atomically {
            founding::found(&place.word, 0)
        } else if founding::founding(&place.word) == Founding::Open(0) {
            // What must not be: looking first and writing then.
            place.word.store(u64::MAX, Ordering::Release);
            Founding::Founded
        } else {
            founding::founding(&place.word)
        }
    } else if own == 1 {
        // SAFETY: one member writes it, before it decides.
        place.reason.with_mut(|cell| unsafe { *cell = 9 });
        founding::give_up(&place.word, 0, 1)
    } else {
        wait_until(|| founding::founding(&place.word) != Founding::Open(0));
        founding::founding(&place.word)
    };
    match founding::author(&place.word) {
        // SAFETY: its author has decided, and writes no more.
        Some(author) => assert_eq!((author, place.reason.with(|cell| unsafe { *cell })), (1, 9)),
        // SAFETY: the other one has arrived, and writes no more.
        None => assert_eq!(place.brought[1 - own].with(|cell| unsafe { *cell }), 7),
    }
    outcome
}

#[test]
fn members_see_one_decision() {
    found_or_give_up(true);
}

/// The model can tell: a decision in two steps is two decisions.
#[test]
#[should_panic]
fn a_decision_in_two_steps_is_two() {
    found_or_give_up(false);
}

// ---- Records ---------------------------------------------------------------------------------------------------

/// Two operations follow each other in one place; a reader at any time sees one of them, or none, and never parts of both.
#[test]
fn a_record_is_read_whole() {
    model(3, || {
        let record = Arc::new(Record::default());
        let owner = Arc::clone(&record);
        let owner = thread::spawn(move || {
            for number in [1, 257] {
                owner.begin(number, number, number + 1);
                owner.done();
            }
        });
        for _ in 0..2 {
            if let Some((read, ())) = record.read(|| ()) {
                assert_eq!((read.words.summary, read.words.begun), (read.number, read.number + 1));
            }
        }
        owner.join().unwrap();
        assert_eq!(record.read(|| ()).unwrap().0.number, 257);
    });
}

/// Who sees that an operation has ended sees when.
#[test]
fn an_end_has_its_time() {
    model(3, || {
        let record = Arc::new(Record::default());
        let owner = Arc::clone(&record);
        let owner = thread::spawn(move || {
            owner.begin(1, 2, 3);
            owner.set_ended(Stage::Failed, 5, 4);
        });
        if let Some((read, ())) = record.read(|| ()) {
            assert!(!read.state.stage.is_over() || (read.words.ended, read.state.error) == (4, 5));
        }
        owner.join().unwrap();
    });
}

/// The model can tell: without the turn a reader mixes two operations.
#[test]
#[should_panic(expected = "parts of two")]
fn without_turns_operations_are_mixed() {
    model(3, || {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let owner = Arc::clone(&words);
        let owner = thread::spawn(move || owner.iter().for_each(|word| word.store(1, Ordering::Release)));
        let read = [0, 1].map(|at: usize| words[at].load(Ordering::Acquire));
        assert!(read[0] == read[1], "parts of two");
        owner.join().unwrap();
    });
}
