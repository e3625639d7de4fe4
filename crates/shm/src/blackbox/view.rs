//! Reading boxes: from any process that maps the world's memory, whatever becomes of the one that writes.

use types::{Rank, Summary, Tag};

use super::place::{BOX_MAGIC, BoxHeader, Place, RECORDS, TrackHeader, read_text, read_track};
use super::{NAMED, slot};
use crate::primitive::Ordering;
use crate::record::{Read, Record, Stage};
use crate::segment::Segment;
use crate::ticks::{Anchor, Scale, Ticker};

/// An operation of a rank. Times are nanoseconds of the monotonic clock, which is one for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it is.
    pub summary: Summary,
    /// What it is matched by; `None` for an unnamed one that was submitted and has no number yet.
    pub tag: Option<Tag>,
    /// The name of its group.
    pub group: String,
    /// Stands for the group among those of its world.
    pub group_id: u64,
    /// Equal for the calls of all ranks that meet each other; 0 if that is not known yet.
    pub key: u64,
    /// Whether it was noted among the calls that a thread makes and waits for in the order of their numbers.
    pub is_blocking: bool,
    /// How far it has come.
    pub stage: Stage,
    /// The [kind](types::failure_name) of the error, for one that failed.
    pub error: u8,
    /// For whom it waits, or waited last: the first rank, and how many.
    pub awaited: Option<(Rank, u16)>,
    /// When it was handed over, if it did not begin at once.
    pub submitted_ns: Option<u64>,
    /// When it was entered.
    pub begun_ns: Option<u64>,
    /// When it ended; `None` if it has not, or ended so soon that nobody looked.
    pub ended_ns: Option<u64>,
}

impl Operation {
    /// When the rank came to it.
    #[must_use]
    pub fn came_ns(&self) -> u64 {
        self.submitted_ns.or(self.begun_ns).unwrap_or_default()
    }

    /// When the rank came to it, as others see it: by its header, or for a named one by submitting it.
    #[must_use]
    pub fn arrived_ns(&self) -> Option<u64> {
        if self.key & NAMED == 0 { self.begun_ns } else { self.submitted_ns }
    }
}

/// What a rank has noted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Its process, by its own word.
    pub process: u32,
    /// When it entered the world: by the monotonic clock, and by the day's.
    pub since_ns: u64,
    /// The same moment in nanoseconds since 1970.
    pub since_unix_ns: u64,
    /// Its last operations, in the order in which it came to them.
    pub operations: Vec<Operation>,
    /// Operations that could not be read because they changed just then.
    pub torn: usize,
}

/// How far before the place of its own record a rank begins to search for those of others.
const NEAR: usize = 8;

fn record(segment: &Segment, records: usize, at: usize) -> &Record {
    segment.at(records + at * size_of::<Record>())
}

/// Reads a rank's box; `None` if the rank has not opened it.
pub(crate) fn read(segment: &Segment, place: Place) -> Option<Noted> {
    let header = segment.at::<BoxHeader>(place.start);
    if header[0].load(Ordering::Acquire) != BOX_MAGIC {
        return None;
    }
    let [_, process, ticker, ticks, since_ns, since_unix_ns] =
        core::array::from_fn(|at| header[at].load(Ordering::Relaxed));
    let scale = Scale::between(Anchor { ticks, ns: since_ns }, Anchor::now(Ticker::from_code(ticker)?));
    let mut noted =
        Noted { process: u32::try_from(process).unwrap_or_default(), since_ns, since_unix_ns, ..Noted::default() };
    read_shared(segment, place, &scale, &mut noted);
    for track in 0..place.tracks {
        read_own(segment, place, track, &scale, &mut noted);
    }
    noted.operations.sort_by_key(Operation::came_ns);
    Some(noted)
}

fn read_shared(segment: &Segment, place: Place, scale: &Scale, noted: &mut Noted) {
    for at in 0..RECORDS {
        let record = record(segment, place.shared(), at);
        let Some((read, (call, group))) = record.read(|| read_text(segment.at(place.text(at)))) else {
            noted.torn += usize::from(!record.is_unused());
            continue;
        };
        let tag = match read.words.key {
            _ if !call.is_empty() => Some(Tag::Named(call.into())),
            0 => None,
            number => Some(Tag::Unnamed(number)),
        };
        noted.operations.extend(operation(&read, tag, group, scale));
    }
}

fn read_own(segment: &Segment, place: Place, track: usize, scale: &Scale, noted: &mut Noted) {
    let header = segment.at::<TrackHeader>(place.track(track));
    let Some((group_id, _, group)) = read_track(header) else { return };
    let mut found = Vec::new();
    for at in 0..RECORDS {
        let record = record(segment, place.records(track), at);
        match record.read(|| ()) {
            Some((read, ())) => found.push(read),
            None => noted.torn += usize::from(!record.is_unused()),
        }
    }
    // It may have been given to another group meanwhile.
    if read_track(header).is_none_or(|(now, ..)| now != group_id) {
        return;
    }
    // They follow each other: only the last one can still go on.
    let last = found.iter().map(|read| read.number).max();
    for mut read in found {
        if Some(read.number) != last && !read.state.stage.is_over() {
            read.state.stage = Stage::Done;
        }
        let operation = operation(&read, Some(Tag::Unnamed(read.number)), group.clone(), scale);
        let own = |operation| Operation { group_id, key: read.number, is_blocking: true, ..operation };
        noted.operations.extend(operation.map(own));
    }
}

fn operation(read: &Read, tag: Option<Tag>, group: String, scale: &Scale) -> Option<Operation> {
    let Read { state, words, .. } = read;
    Some(Operation {
        summary: Summary::from_word(words.summary)?,
        tag,
        group,
        group_id: words.group,
        key: words.key,
        is_blocking: false,
        stage: state.stage,
        error: state.error,
        awaited: (state.awaited > 0).then_some((Rank(state.first), state.awaited)),
        submitted_ns: scale.ns(words.submitted),
        begun_ns: scale.ns(words.begun),
        ended_ns: scale.ns(words.ended),
    })
}

/// When the rank with this box came to a call of a group, in ticks.
pub(super) fn arrival(
    segment: &Segment,
    place: Place,
    ticker: Ticker,
    group: u64,
    key: u64,
    (named, near): (bool, usize),
) -> Option<u64> {
    let header = segment.at::<BoxHeader>(place.start);
    if header[2].load(Ordering::Relaxed) != ticker.code() {
        return None;
    }
    if !named {
        let is_its =
            |track: &usize| read_track(segment.at(place.track(*track))).is_some_and(|(found, ..)| found == group);
        let track = (0..place.tracks).find(is_its);
        let own = track.and_then(|track| record(segment, place.records(track), slot(key)).read(|| ()));
        if let Some((read, ())) = own.filter(|(read, ())| read.number == key) {
            return Some(read.words.begun);
        }
    }
    // Ranks that do the same have it near the same place.
    let places = (0..RECORDS).map(|step| (near + RECORDS - NEAR + step) % RECORDS);
    let all = places.filter_map(|at| record(segment, place.shared(), at).read(|| ()));
    let found = all.map(|(read, ())| read.words).find(|words| words.group == group && words.key == key)?;
    Some(if named { found.submitted } else { found.begun }).filter(|ticks| *ticks != 0)
}
