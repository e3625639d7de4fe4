//! What a rank does.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use bench::{Aligned, Case, Kind, LEAST_LIMIT_BYTES, Ranks, copy_limit, measure, plain_line};
use foldcast::{Buffers, CallOptions, Communicator, Config, DataType, Group, InitOptions, Reduction, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::distance::{self, RoundTrips};
use super::machine::Machine;
use super::options::Request;
use super::report::{Report, Row};
use super::{FAILED, WRONG, plot, say};

/// Joins the other ranks and measures; the exit code, the same on all ranks unless a call failed.
pub(super) fn work(request: &Request, config: Config) -> ExitCode {
    let run = || {
        let communicator = Communicator::with_config(config, InitOptions::default())?;
        let (rank, group) = (communicator.rank().index(), communicator.world());
        let mut world = World { rank, group, windows: request.windows.then(|| communicator.clone()) };
        measure_all(request, &mut world)
    };
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(FAILED)
        }
    }
}

/// All ranks of the job.
pub(super) struct World {
    rank: usize,
    group: Group,
    /// Gives the buffers, if they are to be in memory that all ranks can read.
    windows: Option<Communicator>,
}

impl Ranks for World {
    type Error = foldcast::Error;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    #[inline]
    fn call(&mut self, case: &Case, buffers: Buffers<'_>) -> Result<()> {
        let options = CallOptions::default();
        match case.kind {
            Kind::AllReduce(reduction) => self.group.all_reduce(case.dtype, reduction, buffers, &options),
            Kind::Broadcast(root) => self.group.broadcast(case.dtype, root, buffers, &options),
        }
    }

    fn memory(&mut self, bytes: usize) -> Result<Aligned> {
        match &self.windows {
            Some(communicator) => Ok(Aligned::lent(Box::new(communicator.empty(bytes)?))),
            None => Ok(Aligned::new(bytes)),
        }
    }

    fn barrier(&mut self) -> Result<()> {
        self.group.barrier(&CallOptions::default())
    }

    fn combine(&mut self, value: f64, reduction: Reduction) -> Result<f64> {
        let mut value = [value];
        let buffers = Buffers::InPlace(foldcast::bytes_of_mut(&mut value));
        self.group.all_reduce(DataType::Float64, reduction, buffers, &CallOptions::default())?;
        Ok(value[0])
    }
}

fn measure_all(request: &Request, world: &mut World) -> Result<u8> {
    let speaker = Speaker::new(request, world.rank);
    let cores = distance::cores(world)?;
    let mut report = Report {
        collective: request.collective,
        ranks: world.size(),
        date: SystemTime::now(),
        machine: Machine::here(),
        method: request.method,
        windows: request.windows,
        round_trips: RoundTrips { cores, before: distance::measure(world, cores)?, after: None },
        rows: Vec::new(),
    };
    if !request.plain {
        speaker.tell(&report.head());
    }
    for cases in request.cases.chunk_by(Row::is_shared) {
        let mut row = Row::new(&cases[0]);
        for case in cases {
            speaker.announce(case);
            let measured = measure(world, case, &request.method)?;
            if request.plain {
                speaker.tell(&plain_line(case, world.size(), &measured));
            }
            row.put(case, measured);
            speaker.done();
        }
        if !request.plain {
            if row.bytes >= LEAST_LIMIT_BYTES {
                row.limit_us = Some(copy_limit(world, row.bytes)?);
            }
            speaker.tell(&report.line(&row));
        }
        report.rows.push(row);
    }
    report.round_trips.after = distance::measure(world, report.round_trips.cores)?;
    speaker.end();
    let failed = speaker.is_first && !write_files(request, &report);
    if !request.plain {
        speaker.tell(&report.foot());
    }
    // The others wait here for the files, since a rank that ends with an error is a reason to end all.
    let failed = world.combine(f64::from(u8::from(failed)), Reduction::Max)? > 0.0;
    Ok(match (failed, report.wrong()) {
        (true, _) => FAILED,
        (false, 0) => 0,
        (false, _) => WRONG,
    })
}

/// Whether all could be written.
fn write_files(request: &Request, report: &Report) -> bool {
    let write = |path: &Path, content: &str| match fs::write(path, content) {
        Ok(()) => true,
        Err(error) => {
            say(&format!("could not write {}: {error}", path.display()));
            false
        }
    };
    let json = request.json.as_ref().is_none_or(|path| write(path, &format!("{:#}\n", report.json())));
    let plots = request.plots.iter().map(|path| match plot::draw(report, path) {
        Ok(content) => write(path, &content),
        Err(problem) => {
            say(&format!("could not draw {}: {problem}", path.display()));
            false
        }
    });
    plots.fold(json, |all, one| all && one)
}

/// What rank 0 shows; the others show nothing.
struct Speaker {
    is_first: bool,
    bar: ProgressBar,
}

impl Speaker {
    fn new(request: &Request, rank: usize) -> Speaker {
        let is_first = rank == 0;
        let bar = if is_first && std::io::stderr().is_terminal() {
            let steps = u64::try_from(request.cases.len()).unwrap_or(u64::MAX);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed} passed, {eta} left");
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        } else {
            ProgressBar::hidden()
        };
        Speaker { is_first, bar }
    }

    /// Prints lines, above the bar.
    fn tell(&self, text: &str) {
        if self.is_first {
            self.bar.suspend(|| {
                let mut out = std::io::stdout().lock();
                // Whoever closes the pipe has read enough.
                let _ = writeln!(out, "{}", text.trim_end_matches('\n'));
                let _ = out.flush();
            });
        }
    }

    fn announce(&self, case: &Case) {
        self.bar.set_message(case.to_string());
        self.bar.tick();
    }

    fn done(&self) {
        self.bar.inc(1);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
