//! Which gradients are reduced together: the segments of the gradient split strategy.
//!
//! A pure function of the gradients, in their order, and of a [`Strategy`]. All ranks of a group must cut alike, so both
//! have to be the same on all of them: the order must follow from the program and from nothing that happens while it
//! runs, such as which gradient was ready first, or how a hash map was walked. Two rules are such:
//!
//! * the order in which the program makes the allreduces, which is what the indices of
//!   [`by_index`](Strategy::set_by_index) count; for callers who see it;
//! * for callers who see names only, [`order_by_name`]: natural order, in which `grad_9` stands before `grad_10`.
//!
//! [`digest`] of the list, in whichever order, lets ranks find out that their lists differ.
//!
//! # Decided here, since the documented interface leaves it open
//! * The last index must be that of the last gradient. The documented call is for exactly the gradients of the model: an
//!   index beyond them, and gradients beyond the indices, are errors that say both numbers. (To reduce the rest in some
//!   segment anyway would hide that the strategy was made for another model.)
//! * A strategy of m segments gives m segments whenever there are at least m gradients. With fewer gradients each has a
//!   segment of its own.
//! * Only gradients of one type can be reduced together: a segment of several types becomes one [`Launch`] for each, in
//!   the order in which the types first occur.

use core::ops::Range;
use std::collections::HashSet;
use std::sync::Arc;

use types::{DataType, Error, Result};

/// The most segments that a strategy may have.
pub const MAX_SEGMENTS: usize = 8;

/// The default: two segments with these percentages of the bytes.
pub const DEFAULT_PERCENTAGES: [f64; 2] = [96.54, 3.46];

/// By how much the sum of percentages may differ from 100: what is lost when fractions are written down and added.
const SUM_TOLERANCE: f64 = 1e-6;

/// One gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// Its name, unique among the gradients.
    pub name: Arc<str>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Type of its elements.
    pub dtype: DataType,
}

/// How the gradients of one group are cut into segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strategy {
    by_index: Option<Vec<usize>>,
    by_size: Option<Vec<f64>>,
}

/// Gradients that are reduced in one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which segment it is of, from 0.
    pub segment: usize,
    /// Type of its elements.
    pub dtype: DataType,
    /// Indices of its gradients, ascending.
    pub members: Vec<usize>,
    /// Their size together, in bytes.
    pub bytes: u64,
}

fn one_to_eight(field: &str, number: usize) -> Result<()> {
    if (1..=MAX_SEGMENTS).contains(&number) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("1 to {MAX_SEGMENTS} segments"), format!("{number} segments")))
}

impl Strategy {
    /// Cuts behind these gradients: `[20, 100, 159]` makes segments of 0 to 20, 21 to 100, and 101 to 159. A second call
    /// replaces the first. Without effect on a strategy that has sizes, which win.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are 1 to 8 indices, not negative and ascending. That the last one is the
    /// last gradient is checked when the gradients are known, by [`segments`].
    pub fn set_by_index(&mut self, indices: &[i64]) -> Result<()> {
        const FIELD: &str = "split strategy by index";
        one_to_eight(FIELD, indices.len())?;
        let mut checked = Vec::with_capacity(indices.len());
        for (at, index) in indices.iter().enumerate() {
            let Ok(valid) = usize::try_from(*index) else {
                return Err(Error::invalid(FIELD, "indices of gradients, from 0", format!("{index}")));
            };
            if checked.last().is_some_and(|last| *last >= valid) {
                let got = format!("{index} behind {}", indices[at - 1]);
                return Err(Error::invalid(FIELD, "ascending indices", got));
            }
            checked.push(valid);
        }
        self.by_index = Some(checked);
        Ok(())
    }

    /// Cuts so that the segments have about these percentages of the bytes. A second call replaces the first. Wins over
    /// indices, whichever was set first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are 1 to 8 percentages, each above 0, that sum to 100.
    pub fn set_by_size(&mut self, percentages: &[f64]) -> Result<()> {
        const FIELD: &str = "split strategy by size";
        one_to_eight(FIELD, percentages.len())?;
        if let Some(bad) = percentages.iter().find(|percentage| !(**percentage > 0.0 && percentage.is_finite())) {
            return Err(Error::invalid(FIELD, "percentages above 0", format!("{bad}")));
        }
        let sum: f64 = percentages.iter().sum();
        if (sum - 100.0).abs() > SUM_TOLERANCE {
            return Err(Error::invalid(FIELD, "percentages that sum to 100", format!("a sum of {sum}")));
        }
        self.by_size = Some(percentages.to_vec());
        Ok(())
    }
}

/// The segments of these gradients: ranges of their indices that follow each other, none of them empty.
///
/// By size, each cut falls where the bytes before it are nearest to what the percentages ask for, as far as whole
/// gradients allow (the earlier of two that are equally near), and so that each segment keeps a gradient.
///
/// # Errors
/// [`Error::InvalidArgument`] if two gradients have the same name, or if the strategy is by index and its last index is not
/// that of the last gradient.
pub fn segments(gradients: &[Gradient], strategy: &Strategy) -> Result<Vec<Range<usize>>> {
    let mut names = HashSet::with_capacity(gradients.len());
    if let Some(twice) = gradients.iter().find(|gradient| !names.insert(&gradient.name)) {
        return Err(Error::invalid("gradients", "names that differ", format!("'{}' twice", twice.name)));
    }
    let sizes: Vec<u64> = gradients.iter().map(|gradient| gradient.bytes).collect();
    let ends = ends(&sizes, strategy)?;
    let starts = core::iter::once(0).chain(ends.clone());
    Ok(starts.zip(ends).map(|(start, end)| start..end).collect())
}

/// Where the [`segments`] of gradients of these sizes end: the number of gradients in each segment and those before it. So
/// the last end is their number; of no gradients there is none.
///
/// # Errors
/// As [`segments`], but for names.
pub fn ends(sizes: &[u64], strategy: &Strategy) -> Result<Vec<usize>> {
    let Some(last) = sizes.len().checked_sub(1) else { return Ok(Vec::new()) };
    match (&strategy.by_size, &strategy.by_index) {
        (Some(percentages), _) => Ok(ends_by_size(sizes, percentages)),
        (None, Some(indices)) => {
            if indices.last() != Some(&last) {
                let expected = format!("{last} as the last index, which is that of the last of {} gradients", last + 1);
                return Err(Error::invalid("split strategy by index", expected, format!("{indices:?}")));
            }
            Ok(indices.iter().map(|index| index + 1).collect())
        }
        (None, None) => Ok(ends_by_size(sizes, &DEFAULT_PERCENTAGES)),
    }
}

/// Where the segments end.
fn ends_by_size(sizes: &[u64], percentages: &[f64]) -> Vec<usize> {
    let number = percentages.len().min(sizes.len());
    let mut before = Vec::with_capacity(sizes.len() + 1);
    before.push(0_u64);
    for bytes in sizes {
        before.push(before.last().copied().unwrap_or_default().saturating_add(*bytes));
    }
    let total = real(before[sizes.len()]);
    let (mut ends, mut percent, mut start) = (Vec::with_capacity(number), 0.0, 0);
    for (at, percentage) in percentages[..number - 1].iter().enumerate() {
        percent += percentage;
        let wanted = total * percent / 100.0;
        // At least one gradient for this segment, and for each that follows.
        let (first, last) = (start + 1, sizes.len() - (number - 1 - at));
        let off = |end: usize| (real(before[end]) - wanted).abs();
        let above = first + before[first..=last].partition_point(|bytes| real(*bytes) < wanted);
        let mut end = above.min(last);
        // Of those below, the earliest that has as much: gradients without bytes change nothing.
        if above > first {
            let below = before[above - 1];
            let earliest = first + before[first..=last].partition_point(|bytes| *bytes < below);
            if off(earliest) <= off(end) {
                end = earliest;
            }
        }
        ends.push(end);
        start = end;
    }
    ends.push(sizes.len());
    ends
}

#[allow(clippy::as_conversions, reason = "a share of bytes: rounded alike on every rank")]
fn real(bytes: u64) -> f64 {
    bytes as f64
}

/// What is reduced together: the segments, each cut by the types of its gradients.
///
/// # Errors
/// As [`segments`].
pub fn launches(gradients: &[Gradient], strategy: &Strategy) -> Result<Vec<Launch>> {
    let mut launches: Vec<Launch> = Vec::new();
    for (segment, range) in segments(gradients, strategy)?.into_iter().enumerate() {
        let first = launches.len();
        for at in range {
            let Gradient { bytes, dtype, .. } = gradients[at];
            match launches[first..].iter_mut().find(|launch| launch.dtype == dtype) {
                Some(launch) => {
                    launch.members.push(at);
                    launch.bytes = launch.bytes.saturating_add(bytes);
                }
                None => launches.push(Launch { segment, dtype, members: vec![at], bytes }),
            }
        }
    }
    Ok(launches)
}

/// The order of these names that every rank finds, in whatever order it has them: indices of the names in natural order.
/// Numbers in names count as numbers, so that `grad_9` stands before `grad_10`, and `grad` before both.
#[must_use]
pub fn order_by_name<S: AsRef<str>>(names: &[S]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by(|a, b| {
        let [a, b] = [names[*a].as_ref(), names[*b].as_ref()];
        // Names that differ in leading zeros only still have one order.
        pieces(a).cmp(pieces(b)).then_with(|| a.cmp(b))
    });
    order
}

/// A run of digits, or one other character. Numbers stand before text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Piece<'a> {
    /// Length and digits, without leading zeros: compared as the number, however long.
    Number(usize, &'a str),
    Text(char),
}

fn pieces(name: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = name;
    core::iter::from_fn(move || {
        let next = rest.chars().next()?;
        if !next.is_ascii_digit() {
            rest = &rest[next.len_utf8()..];
            return Some(Piece::Text(next));
        }
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[..end].trim_start_matches('0');
        rest = &rest[end..];
        Some(Piece::Number(digits.len(), digits))
    })
}

/// Digest of names, sizes and types in their order: equal on ranks whose lists are equal.
#[must_use]
pub fn digest(gradients: &[Gradient]) -> u64 {
    gradients.iter().fold(types::digest(0x6675_7365, &[]), |hash, gradient| {
        let mut bytes = gradient.bytes.to_le_bytes().to_vec();
        bytes.push(gradient.dtype.code());
        bytes.extend(gradient.name.as_bytes());
        types::digest(hash, &bytes)
    })
}
