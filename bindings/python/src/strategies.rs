//! The gradient split strategies of groups, which need not exist yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldcast::fusion::{self, Strategy};
use foldcast::{Error, Result};
use pyo3::prelude::*;

use crate::{logger, raise};

struct Entry {
    strategy: Strategy,
    /// Whether somebody was told that it does not fit.
    warned: bool,
}

static STRATEGIES: Mutex<BTreeMap<String, Entry>> = Mutex::new(BTreeMap::new());

fn strategies() -> MutexGuard<'static, BTreeMap<String, Entry>> {
    // The map is whole between any two statements, so a panic elsewhere does not spoil it.
    STRATEGIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the whole gradient split strategy of a group: what was set before is gone, and two Nones forget it.
///
/// Parameters
/// ----------
/// group : str
///     The group's name; the group need not exist.
/// by_index : sequence of int, optional
///     The index of each segment's last gradient.
/// by_size : sequence of float, optional
///     Each segment's share of the bytes in percent. Wins over indices.
///
/// Raises
/// ------
/// InvalidArgumentError
///     These are no indices or shares. Nothing was changed.
#[pyfunction]
#[pyo3(name = "_set_split_strategy")]
pub(crate) fn set_split_strategy(
    py: Python<'_>,
    group: String,
    by_index: Option<Vec<i64>>,
    by_size: Option<Vec<f64>>,
) -> PyResult<()> {
    // A strategy that does not fit is worth a warning, which may be due before the first call.
    logger::install().map_err(|error| raise::exception(py, &error))?;
    let strategy = made(by_index.as_deref(), by_size.as_deref()).map_err(|error| raise::exception(py, &error))?;
    match strategy {
        Some(strategy) => strategies().insert(group, Entry { strategy, warned: false }),
        None => strategies().remove(&group),
    };
    Ok(())
}

fn made(by_index: Option<&[i64]>, by_size: Option<&[f64]>) -> Result<Option<Strategy>> {
    let mut strategy = Strategy::default();
    if let Some(indices) = by_index {
        strategy.set_by_index(indices)?;
    }
    if let Some(percentages) = by_size {
        strategy.set_by_size(percentages)?;
    }
    Ok((by_index.is_some() || by_size.is_some()).then_some(strategy))
}

/// [`Table::split`](table::Table::split).
///
/// # Safety
/// As [`Split`](table::Split) says.
pub(crate) unsafe extern "C" fn split(
    group: *const u8,
    group_len: usize,
    sizes: *const u64,
    count: usize,
    ends: *mut usize,
    room: usize,
) -> usize {
    if count == 0 || group.is_null() {
        return 0;
    }
    // SAFETY: by the contract the name is readable for the time of the call.
    let group = unsafe { std::slice::from_raw_parts(group, group_len) };
    // SAFETY: by the contract as many sizes are readable for the time of the call.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, count) };
    let found = segments(&String::from_utf8_lossy(group), sizes);
    if found.len() > room {
        return 0;
    }
    // SAFETY: by the contract there is room for so many ends, and what was found is memory of our own.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), ends, found.len()) };
    found.len()
}

fn segments(group: &str, sizes: &[u64]) -> Vec<usize> {
    let mut strategies = strategies();
    let Some(Entry { strategy, warned }) = strategies.get_mut(group) else {
        return fusion::ends(sizes, &Strategy::default()).unwrap_or_default();
    };
    let cut = fusion::ends(sizes, strategy);
    if let Err(Error::InvalidArgument(error)) = &cut
        && !std::mem::replace(warned, true)
    {
        log::warn!(
            "group '{group}': the split strategy by index does not fit the {} allreduces of a graph with fusion=1, which are \
             left unfused: expected {}, got {}; set a strategy for that number, or one by size",
            sizes.len(),
            error.expected,
            error.got
        );
    }
    cut.unwrap_or_default()
}
