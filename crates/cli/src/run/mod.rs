//! `foldcast run`: starts the ranks of one job on this host and looks after them until the last one has ended.
//!
//! | module | what is in it |
//! |---|---|
//! | `environment` | the variables that ranks get and those that they do not |
//! | `cores` | which rank runs on which cores |
//! | `start` | how the processes come to be |
//! | `job` | the loop that watches signals, ranks and output |
//! | `ending` | who is asked to end, who is made to, and when |
//! | `outcome` | which rank failed first, the last message, the exit code |
//! | `output` | lines with prefixes, and writing without ever blocking |
//! | `tree` | the processes that ranks started |
//! | `guard` | a second process, for when the launcher is killed |

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use foldcast::launch;
pub(crate) use foldcast::launch::MAX_RANKS;

pub(crate) mod cores;
mod ending;
mod environment;
pub(crate) mod guard;
mod job;
mod outcome;
mod output;
mod start;
mod tree;

const DETAILS: &str = "\
Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, RANK_ID, RANK_SIZE and DEVICE_ID;
PYTHONUNBUFFERED=1 is set, and FOLDCAST_CORES to the number of cores that each rank has for itself. Variables in which
other launchers claim ranks (RANK_TABLE_FILE, CM_*, OMPI_*, PMI_*, PMIX_*, TORCHELASTIC_*, GROUP_RANK, ROLE_RANK and the
like) are removed; MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS are left alone.

Cores: each rank is bound to its contiguous share of the cores that foldcast may use, or to one core, in turn, when
there are more ranks than cores.

Output: lines longer than 64 KiB are broken, last lines are completed. For progress bars and interactive programs use
--raw. Standard input goes to rank 0; the others read nothing.

Failure: when a rank fails, the others have half a second to report it in their own words; then they get SIGTERM, and
SIGKILL if they are still there a second later. With --keep-going they are left alone, so that they can go on without it.

Signals: each rank leads a process group of its own, which gets SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and
SIGTSTP when foldcast gets them. When standard input is a terminal, rank 0 stays in the terminal's foreground group, so
that it can read: it gets Ctrl-C from the terminal itself. What is still there 1.5 s after SIGTERM or SIGHUP is killed,
grandchildren included; so is everything on a second Ctrl-C. Nothing that a rank started outlives the run, not even when
foldcast itself is killed by SIGKILL.

Exit code: 0 if every rank ended with 0, else that of the rank that failed first (whose end began first, if that is known),
or 128+n if signal n killed it. 127 if
the program is not found, 126 if it cannot be executed, 125 if foldcast itself fails, 141 if its output is closed.";

/// Run a program as N ranks on this host
#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub(crate) struct Args {
    /// Number of ranks, 1 to 1024
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = parse_ranks, allow_negative_numbers = true)]
    ranks: usize,
    /// Do not bind ranks to cores
    #[arg(long)]
    no_pin: bool,
    /// Leave the ranks' output as it is: no prefixes, no lines kept together
    #[arg(long)]
    raw: bool,
    /// When a rank fails, let the others finish
    #[arg(long)]
    keep_going: bool,
    /// The program that every rank runs
    #[arg(value_name = "PROGRAM")]
    program: OsString,
    /// Its arguments
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl Args {
    /// A program that keeps its ranks' output apart itself.
    pub(crate) fn of_own_ranks(ranks: usize, no_pin: bool, program: OsString, args: Vec<OsString>) -> Args {
        Args { ranks, no_pin, raw: true, keep_going: false, program, args }
    }
}

pub(crate) fn parse_ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranks) if (1..=launch::MAX_RANKS).contains(&ranks) => Ok(ranks),
        _ => Err(format!("expected a number of ranks from 1 to {}", launch::MAX_RANKS)),
    }
}

/// Exit code for failures of the launcher itself.
const LAUNCHER_FAILED: u8 = 125;

/// Why nothing, or not everything, was started.
#[derive(Debug)]
struct Refusal {
    code: u8,
    message: String,
}

impl Refusal {
    fn new(message: impl Into<String>) -> Refusal {
        Refusal { code: LAUNCHER_FAILED, message: message.into() }
    }
}

/// Writes a line to standard error, if anybody reads it.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "foldcast run: {text}");
}

/// Runs the job; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    match start::start(args) {
        Ok(job) => ExitCode::from(job.supervise()),
        Err(refusal) => {
            say(&refusal.message);
            ExitCode::from(refusal.code)
        }
    }
}
