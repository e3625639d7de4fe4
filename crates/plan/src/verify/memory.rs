use std::collections::HashMap;

use super::symbols::Symbol;
use super::violation::{Access, Area};
use crate::step::Span;

/// A step of a rank: its `tick`-th, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) rank: usize,
    pub(super) tick: u64,
}

impl Event {
    /// Whether the event happened before whoever holds this vector clock.
    fn before(&self, clock: &[u64]) -> bool {
        clock[self.rank] >= self.tick
    }
}

/// What an interval of bytes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) symbol: Symbol,
    /// Offset, in the user's buffers, of what stands in the area's first byte.
    pub(super) origin: usize,
}

/// Why an access is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    Race { bytes: Span, access: Access, other_access: Access, other: Event },
    Unwritten { bytes: Span },
}

struct Segment {
    bytes: Span,
    value: Value,
    written: Event,
    /// For each rank the tick of its last read, 0 for none.
    read: Vec<u64>,
}

/// All shared memory: for each area, disjoint ascending intervals of equal content and equal history. Intervals that
/// nobody has written are left out.
#[derive(Default)]
pub(super) struct Memory {
    areas: HashMap<Area, Vec<Segment>>,
}

/// Makes `at` a boundary.
fn split(segments: &mut Vec<Segment>, at: usize) {
    let Some(index) = segments.iter().position(|segment| segment.bytes.start < at && at < segment.bytes.end) else {
        return;
    };
    let left = &mut segments[index];
    let right =
        Segment { bytes: at..left.bytes.end, value: left.value, written: left.written, read: left.read.clone() };
    left.bytes.end = at;
    segments.insert(index + 1, right);
}

/// The indices of the segments within `bytes`, which become boundaries.
fn within(segments: &mut Vec<Segment>, bytes: &Span) -> core::ops::Range<usize> {
    split(segments, bytes.start);
    split(segments, bytes.end);
    let first = segments.partition_point(|segment| segment.bytes.end <= bytes.start);
    let last = segments.partition_point(|segment| segment.bytes.start < bytes.end);
    first..last
}

impl Memory {
    /// How many areas were touched.
    pub(super) fn areas(&self) -> usize {
        self.areas.len()
    }

    /// Writes `bytes` of an area, by someone who knows what `clock` says.
    pub(super) fn write(
        &mut self,
        area: Area,
        bytes: Span,
        value: Value,
        by: Event,
        clock: &[u64],
    ) -> Result<(), Conflict> {
        let segments = self.areas.entry(area).or_default();
        let range = within(segments, &bytes);
        for segment in &segments[range.clone()] {
            let race = |other_access, other| Conflict::Race {
                bytes: segment.bytes.clone(),
                access: Access::Write,
                other_access,
                other,
            };
            if !segment.written.before(clock) {
                return Err(race(Access::Write, segment.written));
            }
            for (rank, tick) in segment.read.iter().copied().enumerate() {
                let read = Event { rank, tick };
                if !read.before(clock) {
                    return Err(race(Access::Read, read));
                }
            }
        }
        segments.splice(range, [Segment { bytes, value, written: by, read: vec![0; clock.len()] }]);
        Ok(())
    }

    /// Reads `bytes` of an area: intervals that together are `bytes`, and their values.
    pub(super) fn read(
        &mut self,
        area: Area,
        bytes: Span,
        by: Event,
        clock: &[u64],
    ) -> Result<Vec<(Span, Value)>, Conflict> {
        let segments = self.areas.entry(area).or_default();
        let range = within(segments, &bytes);
        let mut found = Vec::new();
        let mut next = bytes.start;
        for segment in &mut segments[range] {
            if segment.bytes.start > next {
                return Err(Conflict::Unwritten { bytes: next..segment.bytes.start });
            }
            if !segment.written.before(clock) {
                return Err(Conflict::Race {
                    bytes: segment.bytes.clone(),
                    access: Access::Read,
                    other_access: Access::Write,
                    other: segment.written,
                });
            }
            segment.read[by.rank] = by.tick;
            found.push((segment.bytes.clone(), segment.value));
            next = segment.bytes.end;
        }
        if next < bytes.end {
            return Err(Conflict::Unwritten { bytes: next..bytes.end });
        }
        Ok(found)
    }
}
