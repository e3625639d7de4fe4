//! `foldcast info`: how this build was made, and what is in it.

use std::io::Write as _;
use std::process::ExitCode;

use foldcast::built::{self, Info};
use serde_json::{Value, json};

/// Say how this Foldcast was built and what is in it
#[derive(clap::Args)]
#[command(after_help = "\
foldcast.build_info() in Python says the same of the module, and where the op library for TensorFlow is.")]
pub(crate) struct Args {
    /// Print JSON, as foldcast.build_info() gives it in Python
    #[arg(long)]
    json: bool,
}

/// Prints it; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    let info = built::info();
    let text = if args.json { format!("{:#}\n", as_json(&info)) } else { as_text(&info) };
    // Whoever closes the pipe has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn as_json(info: &Info) -> Value {
    json!({
        "version": info.version,
        "revision": info.revision,
        "target": info.target,
        "profile": info.profile,
        "kernels": info.kernels,
        "kernels_in_use": info.kernels_in_use,
        "collectives": info.collectives,
        "algorithms": info.algorithms,
    })
}

fn as_text(info: &Info) -> String {
    format!(
        "foldcast     {}\n\
         revision     {}\n\
         built for    {}, {}\n\
         kernels      {}; here {}\n\
         collectives  {}\n\
         algorithms   {}\n",
        info.version,
        info.revision.unwrap_or("not known: not a release"),
        info.target,
        info.profile,
        info.kernels.join(" "),
        info.kernels_in_use,
        info.collectives.join(" "),
        info.algorithms.join(" "),
    )
}
