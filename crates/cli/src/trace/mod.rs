//! `foldcast trace`: what ranks left in `FOLDCAST_DUMP_DIR`, as one timeline and in words.
//!
//! | module | what is in it |
//! |---|---|
//! | `dump` | reading the files, also those that were cut short |
//! | `events` | the timeline: trace events of the format that Perfetto and chrome://tracing open |
//! | `words` | who was missing, who was late, in which call, since when |

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use dump::{Dump, Found};

mod dump;
mod events;
mod words;

/// Merge what failed ranks left in FOLDCAST_DUMP_DIR into one timeline, and say who was missing or late
#[derive(clap::Args)]
#[command(after_help = "\
The timeline opens in https://ui.perfetto.dev and chrome://tracing: one process for each rank, in it one thread for each
group. Files that were cut short are read as far as they go. Of several jobs in the directory the one that wrote last is
taken, unless --job says another one.")]
pub(crate) struct Args {
    /// The directory, or one of its files
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Write the timeline to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Of several jobs, this one: the hexadecimal digits in the names of its files
    #[arg(long, value_name = "ID")]
    job: Option<String>,
}

/// Merges and explains; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    match trace(args) {
        Ok(text) => {
            // Whoever closes the pipe has read enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "foldcast trace: {why}");
            ExitCode::from(2)
        }
    }
}

fn trace(args: &Args) -> Result<String, String> {
    let Found { mut dumps, unreadable } = dump::read(&args.path)?;
    let left_out = format!("files of which nothing could be read: {unreadable}");
    let job = match &args.job {
        Some(job) => job.clone(),
        None => dumps.iter().max_by_key(|dump| dump.at_unix_ms).map(|dump| dump.job.clone()).unwrap_or_default(),
    };
    let others = dumps.iter().filter(|dump| dump.job != job).count();
    dumps.retain(|dump| dump.job == job);
    if dumps.is_empty() {
        let what = args.job.as_ref().map_or_else(String::new, |job| format!(" of job {job}"));
        let path = args.path.display();
        return Err(format!("{path} holds no file{what} that a rank wrote (FOLDCAST_DUMP_DIR); {left_out}"));
    }
    dumps = newest_of_each_rank(dumps);
    let mut text = words::of(&dumps);
    if others > 0 {
        text.push_str(&format!("{others} files of other jobs were left out: see --job\n"));
    }
    if unreadable > 0 {
        text.push_str(&format!("{left_out}\n"));
    }
    if let Some(out) = &args.out {
        let refused = |error: std::io::Error| format!("{}: {error}", out.display());
        std::fs::write(out, events::of(&dumps).to_string()).map_err(refused)?;
        text.push_str(&format!("timeline: {} (open it in https://ui.perfetto.dev)\n", out.display()));
    }
    Ok(text)
}

/// A rank that was started again has left several files.
fn newest_of_each_rank(mut dumps: Vec<Dump>) -> Vec<Dump> {
    dumps.sort_by_key(|dump| (dump.rank, dump.is_cut, std::cmp::Reverse(dump.at_unix_ms)));
    dumps.dedup_by_key(|dump| dump.rank);
    dumps
}
