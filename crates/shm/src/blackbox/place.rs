//! Where a rank's box lies in the world segment, and what stands where in it.
//!
//! | bytes from its start | what |
//! |---|---|
//! | 0 | header: magic, process, kind of ticks, a moment in ticks, in ns of the monotonic clock and of the day's |
//! | 256 and on, each 256 | headers of the tracks of groups: turn, group, members, length and text of the name |
//! | 4,096 | the records of the shared track |
//! | 20,480 | 256 bytes for each of them: lengths and texts of the call's and the group's name |
//! | 86,016 and on, each 16,384 | the records of the tracks of groups |

use super::{cut, text};
use crate::layout::{count, index};
use crate::primitive::{AtomicU64, Ordering, fence};
use crate::record::Record;
use crate::windows::store_bytes;

pub(crate) const BOX_MAGIC: u64 = u64::from_le_bytes(*b"foldbox1");

/// Records of a track.
pub(crate) const RECORDS: usize = 256;

const HEADERS_BYTES: usize = 4096;
const TRACK_HEADER_BYTES: usize = 256;
const TRACK_BYTES: usize = RECORDS * size_of::<Record>();
const TEXT_BYTES: usize = 256;

/// Tracks of groups, and how many there are in worlds of more than [`MANY_RANKS`].
const TRACKS: usize = HEADERS_BYTES / TRACK_HEADER_BYTES - 1;
const FEW_TRACKS: usize = 3;
/// In larger worlds address space is dearer than tracks.
const MANY_RANKS: usize = 64;

/// Magic, process, kind of ticks, a moment in ticks, in ns of the monotonic clock, in ns of the day's clock.
pub(crate) type BoxHeader = [AtomicU64; 6];

/// Turn, group, members, length of the name, name.
pub(crate) type TrackHeader = [AtomicU64; 4 + NAME_WORDS];
const NAME_WORDS: usize = 16;

/// Lengths of the two texts in the first word's first two bytes, then the texts.
pub(crate) type Text = [AtomicU64; TEXT_BYTES / 8];
/// Bytes of the text of a call's name at most; a group's name has at most 127.
const CALL_NAME_BYTES: usize = TEXT_BYTES - 2 - types::MAX_GROUP_NAME_BYTES;

/// Where the box of one rank lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) tracks: usize,
}

/// Tracks of groups in each box of a world of so many ranks.
const fn tracks(size: usize) -> usize {
    if size <= MANY_RANKS { TRACKS } else { FEW_TRACKS }
}

/// Bytes of each box in a world of so many ranks: whole pages.
pub(crate) const fn bytes(size: usize) -> usize {
    HEADERS_BYTES + TRACK_BYTES + RECORDS * TEXT_BYTES + tracks(size) * TRACK_BYTES
}

impl Place {
    /// The box of the rank with this index, where boxes begin at `first`.
    pub(crate) const fn of(first: usize, rank: usize, size: usize) -> Place {
        Place { start: first + rank * bytes(size), tracks: tracks(size) }
    }

    /// The header of a group's track.
    pub(crate) fn track(&self, track: usize) -> usize {
        assert!(track < self.tracks, "a box has no track {track}");
        self.start + (1 + track) * TRACK_HEADER_BYTES
    }

    /// The records of a group's track.
    pub(crate) fn records(&self, track: usize) -> usize {
        assert!(track < self.tracks, "a box has no track {track}");
        self.shared() + TRACK_BYTES + RECORDS * TEXT_BYTES + track * TRACK_BYTES
    }

    /// The records of the shared track.
    pub(crate) const fn shared(&self) -> usize {
        self.start + HEADERS_BYTES
    }

    /// The text of a record of the shared track.
    pub(crate) const fn text(&self, at: usize) -> usize {
        self.shared() + TRACK_BYTES + (at % RECORDS) * TEXT_BYTES
    }
}

/// Gives a track to a group.
pub(crate) fn write_track(header: &TrackHeader, group: u64, members: usize, name: &str) {
    let turn = header[0].load(Ordering::Relaxed) & !1;
    header[0].store(turn + 1, Ordering::Relaxed);
    fence(Ordering::Release);
    let name = cut(name, NAME_WORDS * 8);
    for (at, value) in [group, count(members), count(name.len())].into_iter().enumerate() {
        header[1 + at].store(value, Ordering::Relaxed);
    }
    store_bytes(&header[4..], name.as_bytes());
    header[0].store(turn + 2, Ordering::Release);
}

/// Whose track it is: the group, its members, its name. `None` if it was never given, or is being given just now.
pub(crate) fn read_track(header: &TrackHeader) -> Option<(u64, usize, String)> {
    let turn = header[0].load(Ordering::Acquire);
    if turn == 0 || !turn.is_multiple_of(2) {
        return None;
    }
    let [group, members, length] = core::array::from_fn(|at| header[1 + at].load(Ordering::Relaxed));
    let name = text(&header[4..], 0, index(length));
    fence(Ordering::Acquire);
    (header[0].load(Ordering::Relaxed) == turn).then_some((group, index(members), name))
}

/// Writes the names of a call and of its group.
pub(crate) fn write_text(place: &Text, call: &str, group: &str) {
    let (call, group) = (cut(call, CALL_NAME_BYTES), cut(group, types::MAX_GROUP_NAME_BYTES));
    let lengths = [call, group].map(|text| u8::try_from(text.len()).unwrap_or_default());
    store_bytes(place, &[&lengths[..], call.as_bytes(), group.as_bytes()].concat());
}

/// The names of a call and of its group.
pub(crate) fn read_text(place: &Text) -> (String, String) {
    let [call, group, ..] = place[0].load(Ordering::Relaxed).to_le_bytes().map(usize::from);
    (text(place, 2, call), text(place, 2 + call, group))
}
