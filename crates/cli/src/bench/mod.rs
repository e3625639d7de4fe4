//! `foldcast bench`: times collectives between ranks of this host and checks every element.
//!
//! | module | what is in it |
//! |---|---|
//! | `options` | the command line and the variables, made into cases |
//! | `sizes` | lists and ranges of sizes |
//! | `refuse` | what is found out before anything runs: memory, files |
//! | `distance` | how far cores are from each other |
//! | `rank` | what a rank does; rank 0 also tells |
//! | `machine` | what the figures were taken on |
//! | `report` | the rows, as a table and as JSON |
//! | `plot` | charts as SVG, and the page with values to hover over |

use std::io::Write;
use std::process::ExitCode;

use foldcast::{Config, launch};

use crate::run;
use options::{Collective, Request};

mod distance;
mod machine;
mod options;
mod plot;
mod rank;
mod refuse;
mod report;
mod sizes;

/// Time a collective between ranks of this host, and check every element
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is measured.
#[derive(clap::Subcommand)]
enum What {
    #[command(flatten)]
    Collective(Box<Collective>),
    /// Print how long a cache line takes between two cores and back, in ns, and nothing else
    #[command(after_help = "\
Between the first two cores that this process may use. On a virtual machine the number tells whether they are near each
other at the moment (they share a cache) or far, which small calls depend on: compare only times of one state. It takes
about 2 ms.

Exit code: 0, or 2 if there is only one core, or if no threads can be bound to them.")]
    RoundTrip,
}

#[cfg(any(test, fuzzing))]
impl Args {
    /// How many cases the arguments ask for; the error is for the user.
    pub(crate) fn number_of_cases(&self) -> Result<usize, String> {
        match &self.what {
            What::Collective(collective) => Request::new(collective).map(|request| request.cases.len()),
            What::RoundTrip => Ok(1),
        }
    }
}

/// Some element was not what it must be.
const WRONG: u8 = 1;
/// Nothing was run; clap's code for wrong usage too.
const REFUSED: u8 = 2;
/// A call failed, or a file could not be written.
const FAILED: u8 = 3;

fn say(text: &str) {
    // Nobody may be reading.
    let _ = writeln!(std::io::stderr(), "foldcast bench: {text}");
}

/// Measures; the exit code is the command's.
pub(crate) fn bench(args: &Args) -> ExitCode {
    let collective = match &args.what {
        What::Collective(collective) => collective,
        What::RoundTrip => return distance::tell(),
    };
    let request = match Request::new(collective) {
        Ok(request) => request,
        Err(problem) => return refused(&problem),
    };
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => return refused(&error.to_string()),
    };
    let is_rank = config.size > 1 || std::env::var_os(launch::LAUNCHER_VARIABLE).is_some();
    let ranks = match (is_rank, request.ranks) {
        (true, Some(ranks)) if ranks != config.size => {
            let size = config.size;
            return refused(&format!("--ranks {ranks}, but this process is one of {size} ranks already: leave it out"));
        }
        (true, _) => config.size,
        (false, ranks) => ranks.unwrap_or(options::DEFAULT_RANKS),
    };
    let writes = !is_rank || config.rank.index() == 0;
    if let Err(problem) = refuse::check(&request, ranks, writes) {
        return refused(&problem);
    }
    if is_rank { rank::work(&request, config) } else { start_ranks(&request, ranks) }
}

fn refused(problem: &str) -> ExitCode {
    say(problem);
    ExitCode::from(REFUSED)
}

/// Starts this command anew, as each of the ranks.
fn start_ranks(request: &Request, ranks: usize) -> ExitCode {
    match std::env::current_exe() {
        Ok(program) => {
            let args = std::env::args_os().skip(1).collect();
            run::run(&run::Args::of_own_ranks(ranks, request.no_pin, program.into(), args))
        }
        Err(error) => refused(&format!("cannot find this program's file to start ranks from: {error}")),
    }
}
