use std::ffi::OsStr;
use std::path::PathBuf;

use bench::{Case, Kind, Method, short_name};
use clap::Subcommand;
use foldcast::{DataType, Rank, Reduction};

use super::sizes::{Sizes, short};
use crate::run::parse_ranks;

pub(super) const DEFAULT_RANKS: usize = 2;

const DETAILS: &str = "\
The command starts its ranks itself, as `foldcast run` would; started as a rank (by `foldcast run`, torchrun, mpirun and
the like) it joins the others instead. BENCHMARKING.md in the sources says how the times are taken.

Columns: time is the slowest rank's, the median over that third of the batches in which the ranks waited least for a
processor. algbw is size / time, busbw is algbw by the field's factor (2 (ranks - 1) / ranks for an allreduce). limit is
the time in which all ranks copy `size` bytes at once, measured in the same run; share is limit / time. #wrong counts
the elements, on all ranks, that were not what they must be; every element is checked, of the first call and of the last.
Below the table stands how long a cache line takes between a core of rank 0 and one of rank 1 and back, before and after:
small times depend on it, and on virtual machines it changes (`foldcast bench round-trip` prints it alone).

Variables: BENCH_CASE_MS and BENCH_SAMPLES are the defaults of --case-ms and --samples; BENCH_DIRTY, set to anything, is
--dirty.

Exit code: 0 if every element was right, 1 if not, 2 if nothing was run because of the arguments, the memory or a file,
3 if a call failed or a file could not be written; what `foldcast run` gives if a rank could not be started or was killed.";

/// What can be timed.
#[derive(Subcommand)]
pub(super) enum Collective {
    /// Every rank gets all ranks' elements, combined
    #[command(after_help = DETAILS)]
    Allreduce {
        #[command(flatten)]
        options: Options,
        /// Reductions: sum, max, min, prod
        #[arg(long = "op", value_name = "LIST", value_delimiter = ',', default_value = "sum")]
        reductions: Vec<Reduction>,
        /// Put inputs and outputs in memory that all ranks can read where it is, as `foldcast.empty` does
        #[arg(long)]
        windows: bool,
        /// With --plain: bytes:dtype:op:mode,..., such as 8:f32:sum:out,65536:bf16:sum:in
        #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "plain")]
        #[arg(conflicts_with_all = ["sizes", "dtypes", "reductions", "in_place", "out_of_place"])]
        cases: Vec<Case>,
    },
    /// Every rank gets one rank's elements
    #[command(after_help = DETAILS)]
    Broadcast {
        #[command(flatten)]
        options: Options,
        /// The rank that has them
        #[arg(long, value_name = "RANK", default_value_t = 0)]
        root: usize,
    },
}

#[derive(clap::Args)]
pub(super) struct Options {
    /// Number of ranks, 1 to 32 a core, at most 1024 [default: 2]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_ranks, allow_negative_numbers = true)]
    ranks: Option<usize>,
    /// Sizes in bytes: a list, with ranges that double, such as 8,64,1K..256M
    #[arg(long, value_name = "LIST", default_value = "8..64M", allow_hyphen_values = true)]
    sizes: Sizes,
    /// Data types, such as float32,bfloat16 (or f32,bf16)
    #[arg(long = "dtype", value_name = "LIST", value_delimiter = ',', value_parser = parse_dtype, default_value = "float32")]
    dtypes: Vec<DataType>,
    /// Only in place (input and output are one buffer); without this, both
    #[arg(long, conflicts_with = "out_of_place")]
    in_place: bool,
    /// Only out of place
    #[arg(long)]
    out_of_place: bool,
    /// Write the input anew before each call, untimed, as a program does that computes it
    #[arg(long)]
    dirty: bool,
    /// Write everything to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw time and bandwidth against size: an .svg, or an .html page with values to hover over; may be given twice
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    /// Print lines for programs instead of the table: bytes dtype ranks time_us op mode ok
    #[arg(long)]
    plain: bool,
    /// Time for each measurement in ms; slow ones take up to three times as long [default: 400]
    #[arg(long, value_name = "MS")]
    case_ms: Option<String>,
    /// Batches in that time, 1 to 255 [default: 15]
    #[arg(long, value_name = "N")]
    samples: Option<String>,
    /// What the data follow from; the same on all ranks
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Do not bind ranks to cores
    #[arg(long)]
    no_pin: bool,
}

fn parse_dtype(text: &str) -> Result<DataType, String> {
    DataType::ALL.into_iter().find(|dtype| short_name(*dtype) == text).map_or_else(|| text.parse(), Ok)
}

/// What is to be measured, and where it goes.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) ranks: Option<usize>,
    pub(super) collective: &'static str,
    /// Those of one row of the table follow each other.
    pub(super) cases: Vec<Case>,
    pub(super) method: Method,
    pub(super) plain: bool,
    /// Whether buffers are in memory that all ranks can read.
    pub(super) windows: bool,
    pub(super) json: Option<PathBuf>,
    pub(super) plots: Vec<PathBuf>,
    pub(super) no_pin: bool,
}

impl Request {
    /// Reads the arguments and the variables; the error is for the user.
    pub(super) fn new(collective: &Collective) -> Result<Request, String> {
        let (options, kinds, cases) = match collective {
            Collective::Allreduce { options, reductions, cases, .. } => {
                (options, reductions.iter().map(|each| Kind::AllReduce(*each)).collect(), cases.clone())
            }
            Collective::Broadcast { options, root } => {
                (options, vec![Kind::Broadcast(Rank::from_index(*root))], Vec::new())
            }
        };
        for plot in &options.plot {
            if !matches!(plot.extension().and_then(OsStr::to_str), Some("svg" | "html")) {
                return Err(format!("--plot {}: the name must end in .svg or .html", plot.display()));
            }
        }
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |option: &Option<String>, flag: &str, variable: &str, default: u32, most: u32| {
            let (name, text) = match (option, env(variable)) {
                (Some(text), _) => (flag, text.clone()),
                (None, Some(text)) => (variable, text),
                (None, None) => return Ok(default),
            };
            whole(&text, most).ok_or_else(|| format!("{name} {text:?}: expected a number from 1 to {most}"))
        };
        let default = Method::default();
        let method = Method {
            case_ms: number(&options.case_ms, "--case-ms", "BENCH_CASE_MS", default.case_ms, 3_600_000)?,
            samples: number(&options.samples, "--samples", "BENCH_SAMPLES", default.samples, Method::MAX_SAMPLES)?,
            dirty: options.dirty || std::env::var_os("BENCH_DIRTY").is_some(),
            seed: options.seed,
        };
        Ok(Request {
            ranks: options.ranks,
            collective: match collective {
                Collective::Allreduce { .. } => "allreduce",
                Collective::Broadcast { .. } => "broadcast",
            },
            cases: if cases.is_empty() { cross(options, &kinds)? } else { cases },
            method,
            plain: options.plain,
            windows: matches!(collective, Collective::Allreduce { windows: true, .. }),
            json: options.json.clone(),
            plots: options.plot.clone(),
            no_pin: options.no_pin,
        })
    }
}

/// A number from 1 to `most`; a fraction is rounded, since those who set the variables may divide.
#[allow(clippy::as_conversions, reason = "a whole number from 1 to most")]
fn whole(text: &str, most: u32) -> Option<u32> {
    let number = text.trim().parse::<f64>().ok()?.round();
    (1.0..=f64::from(most)).contains(&number).then_some(number as u32)
}

/// Every size of every type by every reduction, in every mode.
fn cross(options: &Options, kinds: &[Kind]) -> Result<Vec<Case>, String> {
    let modes: &[bool] = match (options.in_place, options.out_of_place) {
        (true, _) => &[true],
        (_, true) => &[false],
        _ => &[false, true],
    };
    let mut cases = Vec::new();
    for kind in each_once(kinds) {
        for dtype in each_once(&options.dtypes) {
            for &bytes in &options.sizes.0 {
                if !bytes.is_multiple_of(dtype.size()) {
                    let (text, size) = (short(bytes), dtype.size());
                    return Err(format!(
                        "--sizes: {text} bytes are no whole number of {dtype} elements, which have {size} bytes each"
                    ));
                }
                cases.extend(modes.iter().map(|&in_place| Case { bytes, dtype, kind, in_place }));
            }
        }
    }
    Ok(cases)
}

/// What stands in a list, in its order, without what stands there already.
fn each_once<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for item in list {
        if !once.contains(item) {
            once.push(*item);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_fractions_but_not_nonsense() {
        assert_eq!([whole("150.0", 200), whole(" 7 ", 200), whole("200", 200)], [Some(150), Some(7), Some(200)]);
        for text in ["", "0", "0.4", "-3", "201", "nan", "inf", "many"] {
            assert_eq!(whole(text, 200), None, "{text}");
        }
    }
}
