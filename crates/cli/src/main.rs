//! The command `foldcast`: one module for each subcommand.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod explain;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod info;
mod products;
mod run;
mod status;
mod trace;
mod tune;

/// AllReduce and friends on ordinary machines.
#[derive(Parser)]
#[command(name = "foldcast", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Bench(bench::Args),
    Products(products::Args),
    Explain(explain::Args),
    Tune(tune::Args),
    Status(status::Args),
    Trace(trace::Args),
    Info(info::Args),
    #[command(hide = true)]
    Guard(run::guard::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Products(args) => products::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Guard(args) => run::guard::watch(&args),
    }
}
