//! Where the areas of a group lie in its segment: computed from the geometry, the same on every rank.

use types::transport::{Channel, Counter, Geometry};
use types::{Error, Result};

use crate::header::PAYLOAD_OFFSET;

/// Things that different ranks write lie this far apart: processors fetch lines in adjacent pairs.
pub const LINE_BYTES: usize = 128;
/// The segment's own header.
pub const HEADER_BYTES: usize = 4096;
/// Entries of a list of named calls.
pub const RING_ENTRIES: usize = 1024;
/// Bytes of an entry: a 128-bit identity.
const ENTRY_BYTES: usize = 16;
/// A side line: the length and a fingerprint of at most 256 bytes.
const SIDE_BYTES: usize = 3 * LINE_BYTES;
const COUNTERS: usize = 5;
/// Counters and side line of one channel.
const CHANNEL_BYTES: usize = COUNTERS * LINE_BYTES + SIDE_BYTES;

/// Where things stand in the control area of a rank.
const AT_ANNOUNCED: usize = 0;
const AT_RELEASED: usize = AT_ANNOUNCED + LINE_BYTES;
const AT_CAUSE: usize = AT_RELEASED + LINE_BYTES;
const AT_ARRIVED: usize = AT_CAUSE + LINE_BYTES;
const AT_CHANNELS: usize = AT_ARRIVED + LINE_BYTES;

/// Offsets of the areas in a group's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    lanes: usize,
    slot_stride: usize,
    chunk_stride: usize,
    depth_mask: u64,
    depth_shift: u32,
    control: usize,
    control_stride: usize,
    slots: usize,
    slots_per_channel: usize,
    pairs: usize,
    pairs_per_channel: usize,
    gathers: usize,
    gathers_per_channel: usize,
    rings: usize,
    order: usize,
    total: usize,
}

/// A counter of bytes laid out so far that notices overflow.
struct Cursor(Option<usize>);

impl Cursor {
    fn take(&mut self, count: usize, each: usize) -> usize {
        let at = self.0.unwrap_or(0);
        let end = count.checked_mul(each).and_then(|bytes| at.checked_add(bytes));
        self.0 = match (self.0, end) {
            (Some(_), Some(end)) => end.checked_next_multiple_of(LINE_BYTES),
            _ => None,
        };
        at
    }
}

impl Layout {
    /// The layout of a group with this geometry and number of lanes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the sizes are not what the protocol can work with: it may come from a peer.
    pub fn new(geometry: Geometry, lanes: usize) -> Result<Layout> {
        let Geometry { ranks, slot_bytes, chunk_bytes, pair_depth } = geometry;
        let sane = (1..=1 << 16).contains(&ranks)
            && (64..=1 << 24).contains(&slot_bytes)
            && (64..=1 << 28).contains(&chunk_bytes)
            && (1..=64).contains(&pair_depth)
            && (1..=Geometry::MAX_LANES).contains(&lanes)
            && slot_bytes.is_multiple_of(64)
            && chunk_bytes.is_multiple_of(64)
            && pair_depth.is_power_of_two();
        let wrong = || {
            Error::invalid(
                "group geometry",
                "1 to 65536 ranks, slots of 64 B to 16 MiB and chunks of 64 B to 256 MiB in whole cache lines, a power of two \
                 up to 64 as depth, 1 to 16 lanes, and a total that fits the address space",
                format!("{geometry:?} and {lanes} lanes"),
            )
        };
        if !sane {
            return Err(wrong());
        }
        let slot_stride = (PAYLOAD_OFFSET + slot_bytes).next_multiple_of(LINE_BYTES);
        let chunk_stride = geometry.chunk_stride();
        let cells = if ranks == 2 { 2 } else { 2 * ranks };
        let pair_count = ranks * (ranks - 1) / 2;
        let buffers = pair_count * pair_depth * 2;
        // Three that every group has, and two for each further lane.
        let channels = 1 + 2 * lanes;
        let control_stride = AT_CHANNELS + channels * CHANNEL_BYTES;
        let mut cursor = Cursor(Some(HEADER_BYTES + 3 * LINE_BYTES));
        let control = cursor.take(ranks, control_stride);
        let rings = cursor.take(ranks, RING_ENTRIES * ENTRY_BYTES);
        let order = cursor.take(RING_ENTRIES, ENTRY_BYTES);
        let slots = cursor.take(channels * cells, slot_stride);
        let gathers = cursor.take(channels * 2 * ranks, chunk_stride);
        let pairs = cursor.take(channels * buffers, chunk_stride);
        let total = cursor.0.and_then(|end| end.checked_next_multiple_of(4096));
        let total = total.filter(|total| isize::try_from(*total).is_ok()).ok_or_else(wrong)?;
        Ok(Layout {
            geometry,
            lanes,
            slot_stride,
            chunk_stride,
            depth_mask: count(pair_depth) - 1,
            depth_shift: pair_depth.trailing_zeros(),
            control,
            control_stride,
            slots,
            slots_per_channel: cells * slot_stride,
            pairs,
            pairs_per_channel: buffers * chunk_stride,
            gathers,
            gathers_per_channel: 2 * ranks * chunk_stride,
            rings,
            order,
            total,
        })
    }

    /// The sizes that the layout was made from.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Into how many lanes a large call is cut.
    #[must_use]
    pub const fn lanes(&self) -> usize {
        self.lanes
    }

    /// The index of a channel's areas.
    #[inline]
    fn channel(&self, channel: Channel) -> usize {
        match channel {
            Channel::Unnamed => 0,
            Channel::Named => 1,
            Channel::Small => 2,
            Channel::Lane(lane) => 2 + self.further(lane),
            Channel::NamedLane(lane) => 1 + self.lanes + self.further(lane),
        }
    }

    /// The number of a lane that has channels of its own.
    #[inline]
    fn further(&self, lane: u8) -> usize {
        let lane = usize::from(lane);
        assert!((1..self.lanes).contains(&lane), "a group of {} lanes has no channel {lane}", self.lanes);
        lane
    }

    /// Bytes of the whole segment. They become memory only when touched.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }

    /// The cell that rank `owner` writes in turn `turn`: header and short payload of call `turn`, or the longer payload with
    /// that number. For two ranks the two cells change hands with each turn.
    #[inline]
    #[must_use]
    pub fn slot(&self, channel: Channel, owner: usize, turn: u64) -> usize {
        self.slots
            + self.channel(channel) * self.slots_per_channel
            + slot_cell(self.geometry.ranks, owner, turn) * self.slot_stride
    }

    /// The buffer that `writer` fills for `reader` in use `turn`.
    #[inline]
    #[must_use]
    pub fn pair(&self, channel: Channel, writer: usize, reader: usize, turn: u64) -> usize {
        let place = index(turn & self.depth_mask);
        let side = pair_side(writer, reader, turn >> self.depth_shift);
        let buffer = ((pair_index(writer, reader) << self.depth_shift) + place) * 2 + side;
        self.pairs + self.channel(channel) * self.pairs_per_channel + buffer * self.chunk_stride
    }

    /// The gather buffer of rank `owner` in use `turn`.
    #[inline]
    #[must_use]
    pub fn gather(&self, channel: Channel, owner: usize, turn: u64) -> usize {
        self.gathers
            + self.channel(channel) * self.gathers_per_channel
            + (owner * 2 + index(turn & 1)) * self.chunk_stride
    }

    /// What rank `owner` has of its own in a channel, beside buffers.
    #[inline]
    fn at_channel(&self, channel: Channel, owner: usize) -> usize {
        self.control + owner * self.control_stride + AT_CHANNELS + self.channel(channel) * CHANNEL_BYTES
    }

    /// The line of a counter of rank `owner`.
    #[inline]
    #[must_use]
    pub fn counter(&self, channel: Channel, owner: usize, counter: Counter) -> usize {
        let counter = match counter {
            Counter::Staged => 0,
            Counter::Folded => 1,
            Counter::Verdict => 2,
            Counter::Taken => 3,
            Counter::Left => 4,
        };
        self.at_channel(channel, owner) + counter * LINE_BYTES
    }

    /// The line with the number of named calls that rank `owner` has announced.
    #[must_use]
    pub const fn announced(&self, owner: usize) -> usize {
        self.control + owner * self.control_stride + AT_ANNOUNCED
    }

    /// The line with the number of announcements of rank `owner` that the group's first rank has read.
    #[must_use]
    pub const fn released(&self, owner: usize) -> usize {
        self.control + owner * self.control_stride + AT_RELEASED
    }

    /// The line with the reason that rank `owner` gives for ending the epoch.
    #[must_use]
    pub const fn cause(&self, owner: usize) -> usize {
        self.control + owner * self.control_stride + AT_CAUSE
    }

    /// The line on which rank `owner` says that it takes part in the founding of the group.
    #[must_use]
    pub const fn arrived(&self, owner: usize) -> usize {
        self.control + owner * self.control_stride + AT_ARRIVED
    }

    /// The line with rank `owner`'s full fingerprint.
    #[must_use]
    pub fn side(&self, channel: Channel, owner: usize) -> usize {
        self.at_channel(channel, owner) + COUNTERS * LINE_BYTES
    }

    /// The entry of rank `owner`'s `at`-th announcement.
    #[must_use]
    pub fn announcement(&self, owner: usize, at: u64) -> usize {
        self.rings + (owner * RING_ENTRIES + ring_index(at)) * ENTRY_BYTES
    }

    /// The line that says whose reason for ending the epoch came first.
    #[inline]
    #[must_use]
    pub const fn abort(&self) -> usize {
        HEADER_BYTES
    }

    /// The line with the number of entries of the published order.
    #[must_use]
    pub const fn ordered(&self) -> usize {
        HEADER_BYTES + LINE_BYTES
    }

    /// The line that says whether the group was founded, where that has to be agreed.
    #[must_use]
    pub const fn founding(&self) -> usize {
        HEADER_BYTES + 2 * LINE_BYTES
    }

    /// The `at`-th entry of the published order.
    #[must_use]
    pub fn order(&self, at: u64) -> usize {
        self.order + ring_index(at) * ENTRY_BYTES
    }
}

/// Which of the cells of a channel rank `owner` writes in turn `turn`.
#[inline]
#[must_use]
pub fn slot_cell(ranks: usize, owner: usize, turn: u64) -> usize {
    let parity = index(turn & 1);
    if ranks == 2 { (owner + parity) & 1 } else { owner * 2 + parity }
}

/// Which side of a pair of buffers `writer` fills for `reader` when the same place is used for the `use_count`-th
/// time, counted from 0.
#[inline]
#[must_use]
pub fn pair_side(writer: usize, reader: usize, use_count: u64) -> usize {
    (usize::from(writer > reader) + index(use_count & 1)) & 1
}

#[inline]
fn pair_index(a: usize, b: usize) -> usize {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    high * (high - 1) / 2 + low
}

fn ring_index(at: u64) -> usize {
    index(at & (count(RING_ENTRIES) - 1))
}

/// A number that is known to be small as an index.
#[inline]
#[allow(clippy::as_conversions, clippy::cast_possible_truncation, reason = "callers pass masked or bounded values")]
pub(crate) const fn index(value: u64) -> usize {
    value as usize
}

/// A number of things in memory as a count.
#[inline]
#[allow(clippy::as_conversions, reason = "usize has at most 64 bits")]
pub(crate) const fn count(value: usize) -> u64 {
    value as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// All areas of a layout: offset and bytes.
    fn areas(layout: &Layout) -> Vec<(usize, usize)> {
        let Geometry { ranks, slot_bytes, chunk_bytes, pair_depth } = layout.geometry();
        let mut all = vec![(0, HEADER_BYTES)];
        all.extend([layout.abort(), layout.ordered(), layout.founding()].map(|at| (at, LINE_BYTES)));
        for at in 0..count(RING_ENTRIES) {
            all.push((layout.order(at), ENTRY_BYTES));
        }
        for owner in 0..ranks {
            let lines = [layout.announced(owner), layout.released(owner), layout.cause(owner), layout.arrived(owner)];
            all.extend(lines.map(|at| (at, LINE_BYTES)));
            all.extend((0..count(RING_ENTRIES)).map(|at| (layout.announcement(owner, at), ENTRY_BYTES)));
        }
        let lanes = (1..layout.lanes()).map(|lane| u8::try_from(lane).expect("few lanes"));
        let lanes = lanes.flat_map(|lane| [Channel::Unnamed, Channel::Named].map(|kind| kind.lane(lane)));
        for channel in [Channel::Unnamed, Channel::Named, Channel::Small].into_iter().chain(lanes) {
            for owner in 0..ranks {
                for counter in [Counter::Staged, Counter::Folded, Counter::Verdict, Counter::Taken, Counter::Left] {
                    all.push((layout.counter(channel, owner, counter), LINE_BYTES));
                }
                all.push((layout.side(channel, owner), SIDE_BYTES));
                all.extend([0, 1].map(|turn| (layout.gather(channel, owner, turn), chunk_bytes)));
                if ranks != 2 || owner == 0 {
                    all.extend([0, 1].map(|turn| (layout.slot(channel, owner, turn), PAYLOAD_OFFSET + slot_bytes)));
                }
                for reader in (0..ranks).filter(|reader| *reader != owner) {
                    all.extend(
                        (0..count(pair_depth)).map(|turn| (layout.pair(channel, owner, reader, turn), chunk_bytes)),
                    );
                }
            }
        }
        all
    }

    #[test]
    fn areas_are_inside_and_apart() {
        for (ranks, lanes) in
            [(1, 1), (2, 1), (2, 2), (2, 16), (3, 3), (4, 1), (5, 4), (8, 2), (17, 1), (64, 2), (150, 1)]
        {
            let layout = Layout::new(Geometry::of(ranks), lanes).unwrap();
            let mut areas = areas(&layout);
            areas.sort_unstable();
            for pair in areas.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{ranks} ranks: {pair:?}");
            }
            let (at, bytes) = areas[areas.len() - 1];
            assert!(at + bytes <= layout.total());
            assert!(areas.iter().all(|(at, bytes)| at.is_multiple_of(if *bytes == ENTRY_BYTES { 16 } else { 64 })));
        }
    }

    #[test]
    fn a_rank_takes_at_most_16_mib_whatever_their_number() {
        for ranks in 1..=Geometry::MAX_RANKS {
            let geometry = Geometry::of(ranks);
            let total = Layout::new(geometry, 1).unwrap().total();
            assert!(total <= ranks * (16 << 20), "{ranks} ranks: {total} bytes");
            for wanted in [2, 3, 8, 16, 100] {
                let lanes = geometry.lanes(wanted);
                assert!(lanes <= wanted && (ranks > 9 || lanes >= wanted.min(5)), "{ranks} ranks: {lanes} lanes");
                let total = Layout::new(geometry, lanes).unwrap().total();
                assert!(total <= ranks * (16 << 20), "{ranks} ranks, {lanes} lanes: {total} bytes");
            }
            let is_full = geometry.chunk_bytes >= 64 << 10;
            // No more is given up than must be: what is left over are fractions of lines, and what is kept for the rest.
            assert!(is_full || total >= ranks * (13 << 20), "{ranks} ranks: {total} bytes, {geometry:?}");
            assert_eq!(is_full, ranks <= 78, "{ranks} ranks: {geometry:?}");
            let is_larger = geometry.chunk_bytes > 64 << 10;
            assert_eq!(is_larger, (3..=9).contains(&ranks), "{ranks} ranks: {geometry:?}");
            assert!(!is_larger || (ranks - 1) * geometry.chunk_bytes <= 1 << 20, "{ranks} ranks: {geometry:?}");
        }
    }

    #[test]
    #[should_panic(expected = "no channel 2")]
    fn a_lane_that_is_not_there_reaches_no_memory() {
        let _ = Layout::new(Geometry::of(3), 2).unwrap().counter(Channel::Lane(2), 0, Counter::Staged);
    }

    #[test]
    #[should_panic(expected = "no channel 2")]
    fn nor_does_one_of_named_calls() {
        let _ = Layout::new(Geometry::of(3), 2).unwrap().counter(Channel::NamedLane(2), 0, Counter::Staged);
    }

    #[test]
    fn two_ranks_write_what_they_have_read_before() {
        for sequence in 1..5 {
            assert_eq!(slot_cell(2, 0, sequence), slot_cell(2, 1, sequence + 1));
            assert_ne!(slot_cell(2, 0, sequence), slot_cell(2, 1, sequence));
        }
        for (writer, reader) in [(0, 1), (4, 2)] {
            for turn in 0..4 {
                assert_eq!(pair_side(writer, reader, turn), pair_side(reader, writer, turn + 1));
                assert_ne!(pair_side(writer, reader, turn), pair_side(reader, writer, turn));
            }
        }
    }

    #[test]
    fn senseless_geometries_are_refused() {
        let good = Geometry::of(3);
        let bad = [
            Geometry { ranks: 0, ..good },
            Geometry { ranks: usize::MAX, ..good },
            Geometry { slot_bytes: 0, ..good },
            Geometry { slot_bytes: 100, ..good },
            Geometry { slot_bytes: usize::MAX, ..good },
            Geometry { chunk_bytes: 0, ..good },
            Geometry { chunk_bytes: usize::MAX & !63, ..good },
            Geometry { pair_depth: 0, ..good },
            Geometry { pair_depth: 3, ..good },
            Geometry { ranks: 1 << 16, chunk_bytes: 1 << 28, pair_depth: 64, ..good },
        ];
        for lanes in [0, 17, usize::MAX] {
            assert!(Layout::new(good, lanes).is_err(), "{lanes} lanes");
        }
        for geometry in bad {
            assert!(Layout::new(geometry, 1).is_err(), "{geometry:?}");
        }
    }
}
