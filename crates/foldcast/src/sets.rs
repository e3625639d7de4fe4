//! Lists whose buffers have names: where the ranks' lists differ, the error says in what.
//!
//! The names take part in every call as a digest in its fingerprint, so a difference is found before anything is reduced,
//! and by all ranks. Only then do they tell each other the names, in two allgathers of their own. The group goes on
//! whatever comes of that: who does not get the others' names in time reports the difference without them.
//!
//! Where one rank makes a list and another one call for each buffer of it, the two do not meet: see [`alone`].

pub(crate) mod alone;

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::OwnedBuffers;
use types::error::Mismatch;
use types::{Buffers, DataType, Error, Rank, Reduction, Result};

use crate::config::Timeout;
use crate::fused::CompletionMany;
use crate::group::{CallOptions, Group, lock};

/// How long a rank waits for the others' names. They all know of the difference at the same time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of one rank's names at most; longer lists are reported without them.
const MOST_BYTES: usize = 16 << 20;

/// Names that a message shows of each kind of difference.
const SHOWN: usize = 5;

/// Kinds of differences that a message shows, such as "missing on rank 1" and "missing on rank 2".
const KINDS: usize = 4;

/// Characters of a name that a message shows.
const NAME_CHARACTERS: usize = 200;

/// More bytes than any text about differences has.
#[cfg(any(test, fuzzing))]
pub(crate) const MOST_SAID: usize = KINDS * SHOWN * (4 * NAME_CHARACTERS + 100) + 1000;

impl Group {
    /// [`all_reduce_many_async`](Self::all_reduce_many_async) of buffers that have names, one a line. All members must give
    /// the same names in the same order: an error says which names, or whose sizes, differ. Where there are fewer names
    /// than buffers the others go by their number in the list. With `options.claims`, a rank that makes calls of their own of
    /// some of the buffers, by [`all_reduce_alone_async`](Self::all_reduce_alone_async), is a mismatch too.
    ///
    /// # Errors
    /// As [`all_reduce_many_async`](Self::all_reduce_many_async).
    pub fn all_reduce_set_async(
        &self,
        dtype: DataType,
        reduction: Reduction,
        mut buffers: Vec<Box<dyn OwnedBuffers>>,
        names: Arc<str>,
        options: &CallOptions<'_>,
        done: CompletionMany,
    ) -> Result<()> {
        let agreed = types::digest(options.agreed, names.as_bytes());
        let counts: Vec<usize> = buffers.iter_mut().map(|own| own.buffers().len() / dtype.size()).collect();
        let (group, claims) = (self.clone(), options.claims.cloned());
        let explained: CompletionMany = Box::new(move |outcome, buffers| match outcome {
            Err(Error::Mismatch(mismatch)) => {
                let own = listing(&names, &counts);
                let theirs = group.clone();
                let judge = move |mismatch: &mut Mismatch, exchange: &dyn Fn() -> Told| {
                    // A rank whose list lacks a name may wait for this one in a call of that name: looked for before that rank
                    // can go on.
                    let found = theirs.shared().claimed_elsewhere(claims.as_ref());
                    explained_by(mismatch, exchange());
                    theirs.shared().answer_of_met(found);
                };
                explain(&group, mismatch, own, judge, move |mismatch| done(Err(Error::Mismatch(mismatch)), buffers));
            }
            outcome => done(outcome, buffers),
        });
        self.all_reduce_many_async(
            dtype,
            reduction,
            buffers,
            &CallOptions { agreed, light_completion: false, ..*options },
            explained,
        )
    }
}

/// What the ranks have told each other, or why not.
type Told = Result<Vec<(Rank, String)>, String>;

/// What ends the call, until somebody takes it.
type Ending = Box<dyn FnOnce(Box<Mismatch>) + Send>;

/// Ends the call with what `judge` makes of the mismatch, on a thread of its own: this one is needed for the exchange, in which
/// `judge` tells the other ranks `own`, and learns theirs.
fn explain(
    group: &Group,
    mismatch: Box<Mismatch>,
    own: String,
    judge: impl FnOnce(&mut Mismatch, &dyn Fn() -> Told) + Send + 'static,
    done: impl FnOnce(Box<Mismatch>) + Send + 'static,
) {
    let tag = mismatch.site.tag.as_ref().map_or_else(String::new, ToString::to_string);
    let done: Ending = Box::new(done);
    let ending = Arc::new(Mutex::new(Some((mismatch, done))));
    let (group, theirs) = (group.clone(), Arc::clone(&ending));
    let work = move || {
        let Some((mut mismatch, done)) = lock(&theirs).take() else { return };
        // What the others sent must not keep the call from ending.
        let compare = AssertUnwindSafe(|| judge(&mut mismatch, &|| exchange(&group, &tag, &own)));
        if std::panic::catch_unwind(compare).is_err() {
            mismatch.detail = unknown("a defect");
        }
        done(mismatch);
    };
    if let Err(error) = std::thread::Builder::new().name("foldcast-names".into()).spawn(work)
        && let Some((mut mismatch, done)) = lock(&ending).take()
    {
        mismatch.detail = unknown(&format!("no thread: {error}"));
        done(mismatch);
    }
}

fn unknown(why: &str) -> String {
    format!("what the lists hold could not be compared: {why}")
}

/// Says in what the lists differ.
fn explained_by(mismatch: &mut Mismatch, told: Told) {
    match told {
        Ok(texts) if alone::explains(mismatch, &texts) => {}
        Ok(texts) => mismatch.detail = differences(&texts),
        Err(why) => mismatch.detail = unknown(&why),
    }
}

/// One line for each buffer: its name, a tab, its number of elements.
fn listing(names: &str, counts: &[usize]) -> String {
    let mut names = names.lines();
    let line = |(at, count): (usize, &usize)| match names.next() {
        Some(name) if !name.is_empty() => format!("{}\t{count}\n", name.replace('\t', " ")),
        _ => format!("number {at}\t{count}\n"),
    };
    counts.iter().enumerate().map(line).collect()
}

/// The lists of all members.
fn exchange(group: &Group, tag: &str, own: &str) -> Result<Vec<(Rank, String)>, String> {
    let until = Instant::now() + PATIENCE;
    let word = |value: usize| u64::try_from(value).unwrap_or(u64::MAX).to_le_bytes();
    // The digest tells a list from one that was left over by an exchange that this rank or another gave up.
    let digest = types::digest(0, own.as_bytes());
    let head = [word(own.len()), digest.to_le_bytes()].concat();
    let heads = gather(group, &format!("{tag}/sizes"), &vec![head.len(); group.size()], head, until)?;
    let heads: Vec<(usize, u64)> = heads
        .chunks_exact(16)
        .map(|head| {
            let word = |at: usize| head[at..at + 8].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
            (usize::try_from(word(0)).unwrap_or(usize::MAX), word(8))
        })
        .collect();
    if heads.iter().any(|(bytes, _)| *bytes > MOST_BYTES) {
        return Err("they are too long".into());
    }
    let sizes: Vec<usize> = heads.iter().map(|(bytes, _)| *bytes).collect();
    let texts = gather(group, &format!("{tag}/names"), &sizes, own.as_bytes().to_vec(), until)?;
    let mut rest = &texts[..];
    let mut listings = Vec::with_capacity(sizes.len());
    for (rank, (bytes, digest)) in group.ranks().iter().zip(heads) {
        let (text, others) = rest.split_at(bytes.min(rest.len()));
        rest = others;
        match core::str::from_utf8(text) {
            Ok(text) if types::digest(0, text.as_bytes()) == digest => listings.push((*rank, text.to_owned())),
            _ => return Err(format!("that of {rank} is not readable")),
        }
    }
    Ok(listings)
}

struct Moved {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl OwnedBuffers for Moved {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

/// An allgather that this thread waits for until then. A deadline would end the group; who has waited long enough leaves
/// the call to the group instead, which ends it when it can, or when it is destroyed.
fn gather(group: &Group, name: &str, sizes: &[usize], input: Vec<u8>, until: Instant) -> Result<Vec<u8>, String> {
    let (sender, receiver) = mpsc::channel();
    let shared = Arc::clone(group.shared());
    let done = move |outcome: Result<()>, mut moved: Box<dyn OwnedBuffers>| {
        shared.exchanges.fetch_sub(1, Ordering::AcqRel);
        let output = match moved.buffers() {
            Buffers::Separate { output, .. } => output.to_vec(),
            Buffers::InPlace(both) => both.to_vec(),
        };
        // Nobody listens any more where the wait was given up.
        let _ = sender.send(outcome.map(|()| output));
    };
    let options = CallOptions { name: Some(name), timeout: Timeout::Never, ..CallOptions::default() };
    let moved = Box::new(Moved { input, output: vec![0; sizes.iter().sum()] });
    // It is none of the user's calls: the group can be destroyed while it is in flight.
    group.shared().exchanges.fetch_add(1, Ordering::AcqRel);
    group.all_gather_unequal_async(DataType::Uint8, sizes, moved, &options, Box::new(done)).map_err(|error| {
        group.shared().exchanges.fetch_sub(1, Ordering::AcqRel);
        error.to_string()
    })?;
    match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(RecvTimeoutError::Timeout) => Err(format!("a rank did not answer within {} s", PATIENCE.as_secs_f64())),
        Err(RecvTimeoutError::Disconnected) => Err("the group is closed".into()),
    }
}

/// One rank's list: names, each once, and numbers of elements.
struct Listing {
    rank: Rank,
    entries: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Listing {
    fn of((rank, text): &(Rank, String)) -> Listing {
        let mut times: HashMap<&str, u32> = HashMap::new();
        let entry = |line| {
            let (name, count) = str::split_once(line, '\t').unwrap_or((line, ""));
            let times = times.entry(name).or_default();
            *times += 1;
            let name = if *times == 1 { name.to_owned() } else { format!("{name} ({times})") };
            (name, count.to_owned())
        };
        let entries: Vec<(String, String)> = text.lines().map(entry).collect();
        let places = entries.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
        Listing { rank: *rank, entries, places }
    }
}

/// In what the lists differ; empty if in nothing.
pub(crate) fn differences(listings: &[(Rank, String)]) -> String {
    let listings: Vec<Listing> = listings.iter().map(Listing::of).collect();
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for (name, _) in listings.iter().flat_map(|listing| &listing.entries) {
        if !seen.insert(name) {
            continue;
        }
        let (has, lacks): (Vec<&Listing>, Vec<_>) =
            listings.iter().partition(|listing| listing.places.contains_key(name));
        if lacks.is_empty() {
            continue;
        }
        let verb = if has.len() == 1 { "has" } else { "have" };
        let kind = if lacks.len() < has.len() {
            format!("missing on {}:", named(&lacks))
        } else {
            format!("only {} {verb}", named(&has))
        };
        kinds.entry(kind).or_default().push(format!("'{}'", short(name)));
    }
    if !kinds.is_empty() {
        let more = kinds.len().saturating_sub(KINDS);
        let mut texts: Vec<_> =
            kinds.iter().take(KINDS).map(|(kind, names)| format!("{kind} {}", some(names))).collect();
        if more > 0 {
            texts.push(format!("and {more} more differences"));
        }
        return texts.join("; ");
    }
    of_equal_names(&listings)
}

/// In what lists of equal names differ: order, or sizes.
fn of_equal_names(listings: &[Listing]) -> String {
    let Some((first, others)) = listings.split_first() else { return String::new() };
    for other in others {
        let pairs = first.entries.iter().zip(&other.entries);
        let at = pairs.into_iter().position(|(own, theirs)| own.0 != theirs.0);
        if let Some(at) = at {
            let [own, theirs] = [first, other].map(|listing| short(&listing.entries[at].0));
            return format!(
                "the order differs: number {at} is '{own}' on {}, '{theirs}' on {}",
                first.rank, other.rank
            );
        }
    }
    let sizes = first.entries.iter().enumerate().filter_map(|(at, (name, count))| {
        let other = others.iter().find(|other| other.entries.get(at).is_some_and(|theirs| theirs.1 != *count))?;
        let (name, count, theirs) = (short(name), short(count), short(&other.entries[at].1));
        Some(format!("'{name}' has {count} elements on {} and {theirs} on {}", first.rank, other.rank))
    });
    some(&sizes.collect::<Vec<_>>())
}

fn named(listings: &[&Listing]) -> String {
    let ranks: Vec<_> = listings.iter().take(SHOWN).map(|listing| listing.rank.to_string()).collect();
    let more = listings.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", ranks.join(", ")) } else { ranks.join(", ") }
}

/// A name as a message shows it: what another rank sends may be of any length.
fn short(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARACTERS) {
        Some((end, _)) => format!("{}..", &name[..end]),
        None => name.to_owned(),
    }
}

fn some(texts: &[String]) -> String {
    let shown = texts.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let more = texts.len().saturating_sub(SHOWN);
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lists: &[&[(&str, usize)]]) -> String {
        let text = |list: &[(&str, usize)]| {
            let names: Vec<_> = list.iter().map(|(name, _)| *name).collect();
            listing(&names.join("\n"), &list.iter().map(|(_, count)| *count).collect::<Vec<_>>())
        };
        let of = |(rank, list): (u32, &&[(&str, usize)])| (Rank(rank), text(list));
        differences(&(0..).zip(lists).map(of).collect::<Vec<_>>())
    }

    #[test]
    fn names_that_some_lack_are_named_with_who() {
        assert_eq!(said(&[&[("a", 1), ("b", 1)], &[("b", 1)]]), "only rank 0 has 'a'");
        assert_eq!(said(&[&[("a", 1)], &[("b", 1)]]), "only rank 0 has 'a'; only rank 1 has 'b'");
        assert_eq!(said(&[&[("a", 1), ("b", 1)], &[("b", 1)], &[("a", 1), ("b", 1)]]), "missing on rank 1: 'a'");
        assert_eq!(said(&[&[("a", 1)], &[("a", 1), ("a", 1)]]), "only rank 1 has 'a (2)'");
        let names: Vec<_> = (0..9).map(|at| format!("n{at}")).collect();
        let many: Vec<_> = names.iter().map(|name| (&name[..], 1)).collect();
        assert_eq!(said(&[&many, &[]]), "only rank 0 has 'n0', 'n1', 'n2', 'n3', 'n4' and 4 more");
        let each: Vec<Vec<_>> = (0..9).map(|at| vec![many[at]]).collect();
        let lists: Vec<_> = each.iter().map(|list| &list[..]).collect();
        assert!(said(&lists).ends_with("only rank 3 has 'n3'; and 5 more differences"), "{}", said(&lists));
    }

    #[test]
    fn of_equal_names_order_or_sizes_are_told() {
        let swapped = said(&[&[("a", 1), ("b", 1)], &[("b", 1), ("a", 1)]]);
        assert_eq!(swapped, "the order differs: number 0 is 'a' on rank 0, 'b' on rank 1");
        let sizes = said(&[&[("a", 1), ("b", 2)], &[("a", 1), ("b", 2)], &[("a", 1), ("b", 3)]]);
        assert_eq!(sizes, "'b' has 2 elements on rank 0 and 3 on rank 2");
        assert_eq!(said(&[&[("a", 1)], &[("a", 1)]]), "");
        assert_eq!(said(&[&[], &[]]), "");
    }

    #[test]
    fn a_long_name_is_cut() {
        let long = "é".repeat(5000);
        let text = said(&[&[(&long, 1)], &[]]);
        assert_eq!(text, format!("only rank 0 has '{}..'", "é".repeat(200)));
    }

    #[test]
    fn what_has_no_name_goes_by_its_number() {
        assert_eq!(listing("", &[3, 4]), "number 0\t3\nnumber 1\t4\n");
        assert_eq!(listing("a\nb\tc", &[3, 4, 5]), "a\t3\nb c\t4\nnumber 2\t5\n");
    }
}
