//! `foldcast tune`: measures what the parts of a call cost on this machine, and keeps it.
//!
//! | module | what is in it |
//! |---|---|
//! | `probe` | what the measured ranks do |
//! | `report` | the result in words and in JSON |

use std::io::{IsTerminal, Write};
use std::process::{Command, ExitCode, Stdio};

use foldcast::costs::{self, Machine};
use foldcast::plans::fit::{Observation, fit};
use foldcast::plans::{Shape, algorithm, all_reduce_algorithms};
use foldcast::{Config, CostsFrom};

mod probe;
mod report;

/// More ranks than this say nothing new.
const MAX_RANKS: usize = 64;
/// Where predictions by the new costs are off by more than this, in the median, something else was measured.
const DISTURBED: f64 = 0.4;
/// Without `--ranks`: up to so many, if there are as many cores.
const USUAL_RANKS: usize = 8;

/// Measure what calls cost on this machine, for the choice between algorithms
#[derive(clap::Args)]
#[command(after_help = "\
Ranks are started and timed with every algorithm, some ten seconds in all; the costs that predict these times best are
kept in $XDG_CACHE_HOME/foldcast or ~/.cache/foldcast, for this processor's model and number of cores, or in the file that
FOLDCAST_COSTS names. Every later job uses them. Best on a machine that does nothing else: the old costs are replaced,
and removing the file brings the built-in ones back.")]
pub(crate) struct Args {
    /// Numbers of ranks to measure with, such as 2,4: 2, and the number of cores up to 8, if not given
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', value_parser = parse_ranks)]
    ranks: Vec<usize>,
    /// Print the costs and keep nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep the costs even if other programs disturbed the measuring
    #[arg(long, conflicts_with = "dry_run")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be one of the ranks that are measured
    #[arg(long, hide = true)]
    probe: bool,
}

fn parse_ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranks) if (2..=MAX_RANKS).contains(&ranks) => Ok(ranks),
        _ => Err(format!("expected numbers of ranks from 2 to {MAX_RANKS}")),
    }
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "foldcast tune: {text}");
}

/// Measures; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    let ran = if args.probe { probe::run() } else { tune(args) };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&why);
            ExitCode::FAILURE
        }
    }
}

fn tune(args: &Args) -> Result<(), String> {
    let (from, _) = Config::choice_from_env().map_err(|error| error.to_string())?;
    if from == CostsFrom::BuiltIn && !args.dry_run {
        return Err("FOLDCAST_COSTS is off: unset it, or use --dry-run to see the costs only".into());
    }
    if !args.dry_run {
        // Better now than after the measuring.
        costs::check_store(&from).map_err(|error| error.to_string())?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = match &args.ranks[..] {
        [] if cores > 2 => vec![2, cores.min(USUAL_RANKS)],
        [] => vec![2],
        given => given.to_vec(),
    };
    if let Some(more) = ranks.iter().find(|ranks| **ranks > cores) {
        say(&format!("{more} ranks share {cores} cores here: what they wait for each other is in the costs"));
    }
    let old = costs::load(&from);
    let mut observations = Vec::new();
    for ranks in ranks {
        for name in algorithms(ranks) {
            if std::io::stderr().is_terminal() && !args.json {
                say(&format!("measuring {name} on {ranks} ranks"));
            }
            observations.extend(measure(name, ranks)?);
        }
    }
    let constants = fit(&observations, &foldcast::plans::Constants::default()).ok_or("nothing could be measured")?;
    let mut report = report::Report {
        machine: &Machine::here(),
        old: &old,
        new: &constants,
        observations: &observations,
        file: None,
    };
    let (error, _) = report.errors(&constants);
    let disturbed = error > DISTURBED && !args.force;
    if !args.dry_run && !disturbed {
        report.file = Some(costs::store(&constants, &from).map_err(|error| error.to_string())?);
    }
    let text = if args.json { format!("{:#}\n", report.json()) } else { report.to_string() };
    // Whoever closes the pipe has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if disturbed && !args.dry_run {
        return Err("other programs disturbed the measuring, so nothing was kept: try again, or use --force".into());
    }
    Ok(())
}

/// The algorithms that can reduce over this many ranks.
fn algorithms(ranks: usize) -> impl Iterator<Item = &'static str> {
    let shape = Shape::all_reduce(ranks, 8, 4);
    all_reduce_algorithms().into_iter().filter(move |name| algorithm(name).is_some_and(|it| it.applies(&shape)))
}

/// Starts ranks of this very program and times them.
fn measure(name: &'static str, ranks: usize) -> Result<Vec<Observation>, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let output = Command::new(&program)
        .args(["run", "--raw", "-n", &ranks.to_string(), "--"])
        .arg(&program)
        .args(["tune", "--probe"])
        .env("FOLDCAST_ALGO", name)
        .env("FOLDCAST_COSTS", "off")
        .env_remove("FOLDCAST_PRODUCT")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{name} on {ranks} ranks: the ranks ended with {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let observation = |line: &str| {
        let (bytes, time_us) = line.split_once(' ')?;
        let shape = Shape::all_reduce(ranks, bytes.parse().ok()?, 4);
        Some(Observation { algorithm: name, shape, time_us: time_us.parse().ok()? })
    };
    text.lines().map(|line| observation(line).ok_or_else(|| format!("a rank said {line:?}"))).collect()
}
