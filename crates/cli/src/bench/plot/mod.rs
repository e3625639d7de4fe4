//! Charts of a report: time and bandwidth against size.

use std::ffi::OsStr;
use std::path::Path;

use super::report::Report;

mod chart;
mod page;

/// The content of the file: a picture, or a page, by the name's ending.
pub(super) fn draw(report: &Report, path: &Path) -> Result<String, String> {
    let svg = chart::svg(report, &series(report))?;
    Ok(if path.extension() == Some(OsStr::new("html")) { page::html(report, &svg) } else { svg })
}

/// One curve: points of size in bytes and time in us, by ascending size.
struct Series {
    name: String,
    /// A place in the palette; `None`: the limit.
    color: Option<usize>,
    points: Vec<(usize, f64)>,
}

/// A curve for each type, reduction and mode, and one for the limit.
fn series(report: &Report) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in &report.rows {
        for (mode, measured) in [("out of place", row.out_of_place), ("in place", row.in_place)] {
            let Some(measured) = measured else { continue };
            let redop = row.kind.reduction_name();
            let name =
                format!("{}{} {mode}", row.dtype, if redop == "none" { String::new() } else { format!(" {redop}") });
            let at = all.iter().position(|each| each.name == name).unwrap_or_else(|| {
                all.push(Series { name, color: Some(all.len()), points: Vec::new() });
                all.len() - 1
            });
            all[at].points.push((row.bytes, measured.time_us));
        }
    }
    let mut limit: Vec<(usize, f64)> = Vec::new();
    for (bytes, time) in report.rows.iter().filter_map(|row| Some((row.bytes, row.limit_us?))) {
        // Several types of one size have measured it several times.
        match limit.iter_mut().find(|point| point.0 == bytes) {
            Some(point) => point.1 = point.1.min(time),
            None => limit.push((bytes, time)),
        }
    }
    if !limit.is_empty() {
        all.push(Series { name: "copy limit".into(), color: None, points: limit });
    }
    all.iter_mut().for_each(|series| series.points.sort_by_key(|point| point.0));
    all
}
