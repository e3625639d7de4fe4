//! The rows, as a table and as JSON.

use std::fmt::Write as _;
use std::time::SystemTime;

use bench::{Case, Kind, Measured, Method};
use foldcast::DataType;
use serde_json::{Value, json};

use super::distance::RoundTrips;
use super::machine::Machine;

/// The figures of one size of one type by one reduction.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) dtype: DataType,
    pub(super) kind: Kind,
    pub(super) out_of_place: Option<Measured>,
    pub(super) in_place: Option<Measured>,
    pub(super) limit_us: Option<f64>,
}

impl Row {
    pub(super) fn new(case: &Case) -> Row {
        let Case { bytes, dtype, kind, .. } = *case;
        Row { bytes, dtype, kind, out_of_place: None, in_place: None, limit_us: None }
    }

    /// Whether two cases stand in one row.
    pub(super) fn is_shared(one: &Case, other: &Case) -> bool {
        (one.bytes, one.dtype, one.kind) == (other.bytes, other.dtype, other.kind) && one.in_place != other.in_place
    }

    pub(super) fn put(&mut self, case: &Case, measured: Measured) {
        let place = if case.in_place { &mut self.in_place } else { &mut self.out_of_place };
        *place = Some(measured);
    }

    fn both(&self) -> impl Iterator<Item = &Measured> {
        self.out_of_place.iter().chain(&self.in_place)
    }

    /// GB/s.
    pub(super) fn algorithm_bandwidth(&self, time_us: f64) -> f64 {
        #[allow(clippy::as_conversions, reason = "a size below 2^53")]
        let bytes = self.bytes as f64;
        bytes / time_us / 1e3
    }
}

/// All that was measured.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) collective: &'static str,
    pub(super) ranks: usize,
    pub(super) date: SystemTime,
    pub(super) machine: Machine,
    pub(super) method: Method,
    /// Whether buffers were in memory that all ranks can read.
    pub(super) windows: bool,
    pub(super) round_trips: RoundTrips,
    pub(super) rows: Vec<Row>,
}

/// Three digits that count.
pub(super) fn three_digits(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

impl Report {
    /// Elements that were wrong, of all rows.
    pub(super) fn wrong(&self) -> u64 {
        self.rows.iter().flat_map(Row::both).map(|measured| measured.wrong).sum()
    }

    /// What was measured where, in words.
    pub(super) fn title(&self) -> String {
        let (ranks, cores) = (self.ranks, self.machine.cores);
        let plural = |number: usize| if number == 1 { "" } else { "s" };
        format!(
            "foldcast {} {}, {ranks} rank{} on {cores} core{}, inputs {}{}",
            env!("CARGO_PKG_VERSION"),
            self.collective,
            plural(ranks),
            plural(cores),
            if self.method.dirty { "written anew before each call" } else { "not rewritten between calls" },
            if self.windows { ", buffers in memory that all ranks can read" } else { "" },
        )
    }

    /// The machine and the date, in words.
    pub(super) fn place(&self) -> String {
        let Machine { processor, kernel, system, .. } = &self.machine;
        format!("{processor}, {system}, Linux {kernel}, {}", humantime::format_rfc3339_seconds(self.date))
    }

    // ---- the table ----

    /// The lines above the first row.
    pub(super) fn head(&self) -> String {
        let group = |title: &str| format!("{title:^41}");
        let columns = format!("{:>9} {:>7} {:>7} {:>7} {:>7}", "time", "algbw", "busbw", "share", "#wrong");
        let units = format!("{:>9} {:>7} {:>7} {:>7} {:>7}", "(us)", "(GB/s)", "(GB/s)", "(%)", "");
        let mut text = format!("# {}\n# {}\n#\n", self.title(), self.place());
        let (out, within) = (group("out of place"), group("in place"));
        let _ = writeln!(text, "# {:>10} {:>11} {:>9} {:>6}  {out}  {within} {:>9}", "", "", "", "", "");
        let _ = writeln!(
            text,
            "# {:>10} {:>11} {:>9} {:>6}  {columns}  {columns} {:>9}",
            "size", "count", "type", "redop", "limit"
        );
        let _ =
            writeln!(text, "# {:>10} {:>11} {:>9} {:>6}  {units}  {units} {:>9}", "(B)", "(elements)", "", "", "(us)");
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// A row of the table.
    pub(super) fn line(&self, row: &Row) -> String {
        let limit = row.limit_us.map_or_else(|| "-".into(), three_digits);
        format!(
            "  {:>10} {:>11} {:>9} {:>6}  {}  {} {limit:>9}",
            row.bytes,
            row.bytes / row.dtype.size(),
            row.dtype,
            row.kind.reduction_name(),
            self.cells(row, row.out_of_place),
            self.cells(row, row.in_place),
        )
    }

    fn cells(&self, row: &Row, measured: Option<Measured>) -> String {
        let Some(measured) = measured else {
            return format!("{:>9} {:>7} {:>7} {:>7} {:>7}", "-", "-", "-", "-", "-");
        };
        let bandwidth = row.algorithm_bandwidth(measured.time_us);
        let share = row.limit_us.map_or_else(|| "-".into(), |limit| format!("{:.0}", 100.0 * limit / measured.time_us));
        format!(
            "{:>9} {:>7} {:>7} {share:>7} {:>7}",
            three_digits(measured.time_us),
            three_digits(bandwidth),
            three_digits(bandwidth * row.kind.bus_factor(self.ranks)),
            measured.wrong
        )
    }

    /// What small times depend on, and the verdict.
    pub(super) fn foot(&self) -> String {
        let verdict = match self.wrong() {
            0 => "# every element was right".to_owned(),
            wrong => format!("# {wrong} elements were WRONG"),
        };
        self.round_trips.lines() + &verdict
    }

    // ---- for programs ----

    pub(super) fn json(&self) -> Value {
        let Machine { processor, cores, memory_bytes, kernel, system } = &self.machine;
        let Method { case_ms, samples, dirty, seed } = self.method;
        json!({
            "schema": 1,
            "foldcast": env!("CARGO_PKG_VERSION"),
            "date": humantime::format_rfc3339_seconds(self.date).to_string(),
            "machine": {
                "processor": processor, "cores": cores, "memory_bytes": memory_bytes, "kernel": kernel, "system": system,
            },
            "collective": self.collective,
            "ranks": self.ranks,
            "line_round_trip_ns": {
                "cores": self.round_trips.cores, "before": self.round_trips.before, "after": self.round_trips.after,
            },
            "method": {
                "case_ms": case_ms, "samples": samples, "dirty": dirty, "seed": seed, "windows": self.windows,
                "time": "us a call, of the slowest rank: median over the third of the batches with the least wait for a processor",
                "limit": "us in which all ranks copy size_bytes at once",
            },
            "wrong": self.wrong(),
            "results": self.rows.iter().map(|row| self.json_row(row)).collect::<Value>(),
        })
    }

    fn json_row(&self, row: &Row) -> Value {
        json!({
            "size_bytes": row.bytes,
            "count": row.bytes / row.dtype.size(),
            "dtype": row.dtype.name(),
            "redop": row.kind.reduction_name(),
            "limit_us": row.limit_us,
            "out_of_place": row.out_of_place.map(|measured| self.json_measured(row, &measured)),
            "in_place": row.in_place.map(|measured| self.json_measured(row, &measured)),
        })
    }

    fn json_measured(&self, row: &Row, measured: &Measured) -> Value {
        let bandwidth = row.algorithm_bandwidth(measured.time_us);
        let quantiles = &measured.quantiles;
        json!({
            "time_us": measured.time_us,
            "algbw_gb_s": bandwidth,
            "busbw_gb_s": bandwidth * row.kind.bus_factor(self.ranks),
            "share_of_limit": row.limit_us.map(|limit| limit / measured.time_us),
            "wrong": measured.wrong,
            "batches": measured.batches,
            "calls_per_batch": measured.calls,
            "quantiles_us": {
                "min": quantiles.min, "p10": quantiles.p10, "p25": quantiles.p25, "median": quantiles.median,
                "p75": quantiles.p75, "p90": quantiles.p90, "max": quantiles.max,
            },
        })
    }
}
