//! How the processes of a job come to be.

use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use foldcast::Rank;
use rustix::process::{Pid, Resource, Signal, getpid, getrlimit, set_child_subreaper};

use super::guard::Guard;
use super::job::{Job, RankProcess, Stream, Target};
use super::output::Lines;
use super::{Args, Refusal, cores, environment, launch, say, tree};

/// The signals that the launcher passes on.
const PASSED_ON: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP];

/// Starts every rank.
pub(super) fn start(args: &Args) -> Result<Job, Refusal> {
    check_descriptors(args)?;
    let refused = |what: &str, error: io::Error| Refusal::new(format!("{what}: {error}"));
    let signals = launch::Signals::take(&PASSED_ON).map_err(|error| refused("could not receive signals", error))?;
    // Orphans of the ranks then become children of this process, which finds and ends them.
    set_child_subreaper(Some(getpid())).map_err(|errno| refused("could not adopt orphans", errno.into()))?;
    let server = launch::Server::listen(args.ranks).map_err(|error| Refusal::new(error.to_string()))?;
    // A shell that became this process by exec may have left children that are none of the job.
    let numbers = tree::Numbers::here();
    let children = tree::all().into_iter().filter(|process| process.parent == numbers.own());
    let strangers = children.filter_map(|process| numbers.here_of(process.pid)).collect();
    let guard = Guard::start(server.job())
        .inspect_err(|error| {
            say(&format!(
                "could not start a guard ({error}): if this process is killed by SIGKILL, what the ranks started may \
                 be left"
            ));
        })
        .ok();
    let mut job = Job::new(args, signals, server, guard, strangers);
    let result = spawn_all(args, &mut job);
    match result {
        Ok(()) => Ok(job),
        Err(refusal) if job.is_empty() => {
            job.discard();
            Err(refusal)
        }
        Err(refusal) => {
            job.stop(refusal);
            Ok(job)
        }
    }
}

/// Each rank costs two pipes and one or two connections; starting one costs a few more for a moment.
fn check_descriptors(args: &Args) -> Result<(), Refusal> {
    let needed = u64::try_from(32 + args.ranks * if args.raw { 2 } else { 4 }).unwrap_or(u64::MAX);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(Refusal::new(format!(
            "{} ranks need {needed} open files here, and the limit is {limit}: raise it by `ulimit -n {needed}`",
            args.ranks
        ))),
        _ => Ok(()),
    }
}

fn spawn_all(args: &Args, job: &mut Job) -> Result<(), Refusal> {
    let cannot_bind = |errno| {
        Refusal::new(format!("could not bind ranks to cores: {errno}; use --no-pin to let the system place them"))
    };
    let allowed = if args.no_pin { Vec::new() } else { cores::allowed().map_err(cannot_bind)? };
    // By affinity, and by the share of time that a container may have; asked before this thread is bound.
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let own = (usable / args.ranks).max(1);
    let spawned = (0..args.ranks).try_for_each(|rank| {
        // A new process inherits the cores of the one that makes it.
        if !allowed.is_empty() {
            cores::bind(cores::share(&allowed, rank, args.ranks)).map_err(cannot_bind)?;
        }
        spawn(args, Rank::from_index(rank), own, job)
    });
    if !allowed.is_empty() {
        cores::bind(&allowed).map_err(cannot_bind)?;
    }
    spawned
}

fn spawn(args: &Args, rank: Rank, cores: usize, job: &mut Job) -> Result<(), Refusal> {
    let mut command = Command::new(&args.program);
    command.args(&args.args);
    for (name, _) in std::env::vars_os().filter(|(name, _)| environment::is_foreign(name)) {
        command.env_remove(name);
    }
    command.envs(environment::of_rank(rank, args.ranks, cores, job.server()));
    if rank != Rank(0) {
        command.stdin(Stdio::null());
    }
    if !args.raw {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // A rank that is to read a terminal must be in the group that the terminal's user talks to.
    let own_group = rank != Rank(0) || !io::stdin().is_terminal();
    let child = launch::spawn(command, own_group, job.signals()).map_err(|error| explain(args, rank, &error))?;
    job.add(adopt(child, own_group, rank)?);
    Ok(())
}

fn adopt(mut child: Child, own_group: bool, rank: Rank) -> Result<RankProcess, Refusal> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Refusal::new(format!("{rank} has no process number")))?;
    let out = child.stdout.take().map(|pipe| (OwnedFd::from(pipe), Target::Out));
    let err = child.stderr.take().map(|pipe| (OwnedFd::from(pipe), Target::Err));
    let streams = out.into_iter().chain(err).map(|(pipe, target)| {
        let lines = Lines::new(format!("[{}] ", rank.0));
        Stream { pipe, lines, target }
    });
    Ok(RankProcess { rank, pid, own_group, running: true, streams: streams.collect() })
}

/// What the shells say by 126 and 127, in words.
fn explain(args: &Args, rank: Rank, error: &io::Error) -> Refusal {
    let program = args.program.to_string_lossy();
    let exists = program.contains('/') && std::path::Path::new(&args.program).exists();
    match error.kind() {
        ErrorKind::NotFound if exists => Refusal {
            code: 127,
            message: format!("cannot run '{program}': its interpreter (the line after #!) is not found"),
        },
        ErrorKind::NotFound => Refusal {
            code: 127,
            message: format!("cannot run '{program}': no such program, neither as a path nor in PATH"),
        },
        ErrorKind::PermissionDenied => Refusal {
            code: 126,
            message: format!(
                "cannot run '{program}': it is not an executable file; make it one by `chmod +x`, or name the program \
                 that runs it, as in `foldcast run -n {} python {program}`",
                args.ranks
            ),
        },
        _ => Refusal::new(format!(
            "could not start {rank}: {error}; the limits are `ulimit -u` (processes) and `ulimit -n` (open files)"
        )),
    }
}
