//! `foldcast status`: what the jobs of this user on this host do: who waits for whom, in which call, since when.
//!
//! | module | what is in it |
//! |---|---|
//! | `judge` | what is said of a job: its state, its waits, its times, who comes late |
//! | `text`, `json` | the same for people and for programs |

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use foldcast::blackbox::observe::{Job, hash_of, jobs};

use judge::Judged;

mod json;
mod judge;
mod text;

/// How long a rank may take to answer. One that computes or waits answers at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Show what the jobs of this user on this host do: who waits for whom, in which call, since when
#[derive(clap::Args)]
#[command(after_help = "\
States: MEETING: not all ranks have come yet. RUNNING: no rank waits. WAITING: some wait, for less than --stalled-after.
STALLED: some wait for longer, or for a rank that is stopped or gone. ENDED: all ranks have left.

Ranks answer whatever their program does; for one that is stopped another one answers. Asking holds up nobody. Only jobs of
the same user and network namespace are seen, and only those of several ranks.

Exit code: 0; 1 if there is no job of the given ID; 2 if the system does not say which jobs there are.")]
pub(crate) struct Args {
    /// Only this job: its FOLDCAST_JOB, or the hexadecimal digits that status shows
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A call that waits for longer is stalled
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    stalled_after: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "expected seconds from 0".into())
}

/// Prints the state of the jobs; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    let found = match jobs(PATIENCE) {
        Ok(found) => found,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "foldcast status: {error}");
            return ExitCode::from(2);
        }
    };
    let wanted = |job: &Job| args.job.as_deref().is_none_or(|id| is_called(job, id));
    let judged: Vec<Judged> = found.into_iter().filter(wanted).map(|job| Judged::of(job, args.stalled_after)).collect();
    let text = if args.json { format!("{:#}\n", json::of(&judged)) } else { text::of(&judged) };
    // Whoever closes the pipe has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    match (&args.job, judged.is_empty()) {
        (Some(id), true) => {
            let _ = writeln!(std::io::stderr(), "foldcast status: no job '{id}' of this user is on this host");
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Whether this is what a job is called: by its key, or by what stands for that.
fn is_called(job: &Job, id: &str) -> bool {
    job.hash == hash_of(id) || format!("{:016x}", job.hash) == id
}
