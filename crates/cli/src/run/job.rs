//! The one loop of the launcher: signals, ranks that end, their output, and what is due.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use foldcast::{Ending, Rank};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, wait};
use rustix::time::Timespec;

use super::ending::Ladder;
use super::guard::Guard;
use super::outcome::{Outcome, is_success};
use super::output::{Lines, Sink, Written, same_file};
use super::{Args, Refusal, launch, tree};

/// How long a second request to end must come after the first one: closer ones are one, delivered twice.
const SECOND_REQUEST: Duration = Duration::from_millis(200);

/// When to say that ranks go on after SIGINT.
const HINT_DELAY: Duration = Duration::from_secs(1);

/// How often to look for processes that are left when the ranks have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a pipe may stay silent that is still open although every process of the job has ended.
const SILENCE: Duration = Duration::from_millis(500);

/// Bytes read from a rank at a time.
const READ_BYTES: usize = 64 * 1024;

/// Which of the launcher's streams a rank's output goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Out,
    Err,
}

/// One output stream of a rank.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) pipe: OwnedFd,
    pub(super) lines: Lines,
    pub(super) target: Target,
}

/// The process that was started for a rank.
#[derive(Debug)]
pub(super) struct RankProcess {
    pub(super) rank: Rank,
    pub(super) pid: Pid,
    /// Whether it leads a process group, else it is in the launcher's.
    pub(super) own_group: bool,
    /// Not reaped yet: its number is its own.
    pub(super) running: bool,
    pub(super) streams: Vec<Stream>,
}

/// What has something for the loop to do.
#[derive(Clone, Copy, Debug)]
enum Source {
    Signals,
    Server,
    Sink,
    Rank(usize, Target),
}

/// A running job.
pub(super) struct Job {
    signals: launch::Signals,
    server: launch::Server,
    guard: Option<Guard>,
    numbers: tree::Numbers,
    /// Children of this process that are none of the job.
    strangers: Vec<i32>,
    ranks: Vec<RankProcess>,
    out: Sink,
    err: Sink,
    one_file: bool,
    keep_going: bool,
    ladder: Ladder,
    outcome: Outcome,
    last_request: Option<(Signal, Instant)>,
    hint_at: Option<Instant>,
    last_sound: Instant,
    /// A signal came when only output was left to write.
    abandoned: bool,
    buffer: Vec<u8>,
}

impl Job {
    pub(super) fn new(
        args: &Args,
        signals: launch::Signals,
        server: launch::Server,
        guard: Option<Guard>,
        strangers: Vec<i32>,
    ) -> Job {
        let (out, err) = (Sink::new(rustix::stdio::stdout()), Sink::new(rustix::stdio::stderr()));
        Job {
            one_file: same_file(out.stream(), err.stream()),
            signals,
            server,
            guard,
            numbers: tree::Numbers::here(),
            strangers,
            ranks: Vec::with_capacity(args.ranks),
            out,
            err,
            keep_going: args.keep_going,
            ladder: Ladder::default(),
            outcome: Outcome::new(args.ranks, args.keep_going),
            last_request: None,
            hint_at: None,
            last_sound: Instant::now(),
            abandoned: false,
            buffer: vec![0; READ_BYTES],
        }
    }

    pub(super) fn server(&self) -> &launch::Server {
        &self.server
    }

    pub(super) fn signals(&self) -> &launch::Signals {
        &self.signals
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub(super) fn add(&mut self, rank: RankProcess) {
        if let (Some(guard), true) = (&mut self.guard, rank.own_group) {
            guard.add(rank.pid);
        }
        self.ranks.push(rank);
    }

    /// The launcher cannot go on: the ranks are to end.
    pub(super) fn stop(&mut self, refusal: Refusal) {
        self.outcome.stop(refusal);
        self.ladder.begin(Instant::now(), false);
    }

    /// Ends a job without ranks.
    pub(super) fn discard(self) {
        if let Some(guard) = self.guard {
            guard.end();
        }
    }

    /// Looks after the ranks until everything has ended; the exit code.
    pub(super) fn supervise(mut self) -> u8 {
        loop {
            let now = Instant::now();
            if let Some(signal) = self.ladder.due(now) {
                self.signal_everything(signal);
            }
            self.hint(now);
            let left = self.running() == 0 && !self.left_over().is_empty();
            if left && !self.ladder.has_begun() {
                self.ladder.begin(now, true);
            }
            if left {
                // It may write something before it ends.
                self.last_sound = now;
            }
            if self.is_over(left, now) {
                break;
            }
            self.wait(self.timeout(left, now));
        }
        self.finish();
        let code = self.outcome.code();
        self.discard();
        code
    }

    fn running(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.running).count()
    }

    /// The processes of the job, as far as /proc shows them.
    fn left_over(&self) -> Vec<tree::Process> {
        let guard = self.guard.as_ref().map(|guard| guard.pid().as_raw_nonzero().get());
        let is_none_of_the_job =
            |pid: i32| self.numbers.here_of(pid).is_some_and(|pid| guard == Some(pid) || self.strangers.contains(&pid));
        tree::descendants(self.numbers.own(), &is_none_of_the_job)
    }

    fn is_over(&self, left: bool, now: Instant) -> bool {
        if self.running() > 0 {
            return false;
        }
        if left && !self.ladder.is_hopeless(now) {
            return false;
        }
        let silent = now.duration_since(self.last_sound) > SILENCE && !self.out.is_full() && !self.err.is_full();
        self.abandoned || silent || self.ranks.iter().all(|rank| rank.streams.is_empty())
    }

    fn timeout(&self, left: bool, now: Instant) -> Option<Duration> {
        let ended = self.running() == 0;
        let look = left.then_some(LOOK_AGAIN).or(ended.then_some(SILENCE)).map(|delay| now + delay);
        let next = [self.ladder.next(), self.hint_at, look].into_iter().flatten().min();
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Waits until something has to be done or the time is over, and does it.
    fn wait(&mut self, timeout: Option<Duration>) {
        let was_full = self.out.is_full() || self.err.is_full();
        for source in self.poll(timeout) {
            match source {
                Source::Signals => self.take_signals(),
                Source::Server => self.server.serve(),
                Source::Sink => {}
                Source::Rank(rank, target) => self.read(rank, target),
            }
        }
        self.write();
        if was_full {
            // The ranks were not silent, they were not heard.
            self.last_sound = Instant::now();
        }
    }

    fn poll(&self, timeout: Option<Duration>) -> Vec<Source> {
        let mut sources = vec![Source::Signals, Source::Server];
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.server, PollFlags::IN)];
        for (sink, other) in [(&self.out, &self.err), (&self.err, &self.out)] {
            if !sink.is_empty() && !self.must_wait(other) {
                sources.push(Source::Sink);
                polled.push(PollFd::from_borrowed_fd(sink.stream(), PollFlags::OUT));
            }
        }
        for (index, rank) in self.ranks.iter().enumerate() {
            for stream in rank.streams.iter().filter(|stream| !self.sink(stream.target).is_full()) {
                sources.push(Source::Rank(index, stream.target));
                polled.push(PollFd::new(&stream.pipe, PollFlags::IN));
            }
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if poll(&mut polled, timeout.as_ref()).is_err() {
            // Interrupted: the loop comes again.
            return Vec::new();
        }
        let ready = polled.iter().zip(sources).filter(|(polled, _)| !polled.revents().is_empty());
        ready.map(|(_, source)| source).collect()
    }

    fn sink(&self, target: Target) -> &Sink {
        match target {
            Target::Out => &self.out,
            Target::Err => &self.err,
        }
    }

    /// Whether `other` has begun a line where a second stream would write into it.
    fn must_wait(&self, other: &Sink) -> bool {
        self.one_file && other.is_mid_line()
    }

    fn read(&mut self, rank: usize, target: Target) {
        let streams = &mut self.ranks[rank].streams;
        let Some(at) = streams.iter().position(|stream| stream.target == target) else { return };
        let sink = match target {
            Target::Out => &mut self.out,
            Target::Err => &mut self.err,
        };
        self.last_sound = Instant::now();
        match rustix::io::read(&streams[at].pipe, &mut self.buffer[..]) {
            Ok(length) if length > 0 => streams[at].lines.push(&self.buffer[..length], sink.lines()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => streams.remove(at).lines.finish(sink.lines()),
        }
    }

    fn write(&mut self) {
        for target in [Target::Out, Target::Err] {
            let (sink, other) = match target {
                Target::Out => (&mut self.out, &self.err),
                Target::Err => (&mut self.err, &self.out),
            };
            if self.one_file && other.is_mid_line() {
                continue;
            }
            match sink.write() {
                Written::Fine => continue,
                Written::Closed => self.outcome.output_closed(),
                Written::Failed(errno) => {
                    let message = format!("could not write the ranks' output: {errno}; the ranks were ended");
                    self.outcome.stop(Refusal::new(message));
                }
            }
            self.ladder.begin(Instant::now(), false);
        }
    }

    fn take_signals(&mut self) {
        while let Some(arrival) = self.signals.next_arrival() {
            let Some(signal) = Signal::from_named_raw(arrival.signal) else { continue };
            // Who made us ignore a signal meant those of the terminal; of SIGHUP (nohup) all.
            if arrival.was_ignored && signal != Signal::CHILD && (arrival.from_kernel || signal == Signal::HUP) {
                continue;
            }
            match signal {
                Signal::CHILD => self.reap(),
                Signal::TSTP => self.suspend(arrival.from_kernel),
                Signal::USR1 | Signal::USR2 => self.pass_on(signal, arrival.from_kernel),
                _ => self.request_end(signal, arrival.from_kernel),
            }
        }
    }

    fn request_end(&mut self, signal: Signal, from_kernel: bool) {
        let now = Instant::now();
        if self.running() == 0 {
            self.abandoned = true;
        }
        match self.last_request.replace((signal, now)) {
            // More than was asked before.
            Some((earlier, _)) if signal == Signal::TERM && earlier != Signal::TERM => {}
            // One request that was delivered twice, to the process and to its group.
            Some((_, at)) if now.duration_since(at) < SECOND_REQUEST => return,
            Some(_) => return self.ladder.kill_now(now),
            None => {}
        }
        self.outcome.asked(signal.as_raw());
        self.pass_on(signal, from_kernel);
        match signal {
            Signal::TERM => self.ladder.has_been_asked(now),
            Signal::HUP => self.ladder.begin(now, true),
            _ => self.hint_at = Some(now + HINT_DELAY),
        }
    }

    /// Some programs ask for more by SIGINT than to end: they get the time that they want, and the user a hint.
    fn hint(&mut self, now: Instant) {
        if self.hint_at.is_none_or(|at| at > now) {
            return;
        }
        self.hint_at = None;
        if self.running() > 0 && !self.ladder.has_begun() {
            let (running, all) = (self.running(), self.ranks.len());
            let text =
                format!("foldcast run: still there after SIGINT: {running} of {all} ranks; a second one kills\n");
            self.err.lines().extend_from_slice(text.as_bytes());
        }
    }

    /// Sends a signal to every rank's group. What the terminal sent, it sent to the launcher's own group too.
    fn pass_on(&self, signal: Signal, from_kernel: bool) {
        for rank in self.ranks.iter().filter(|rank| rank.running) {
            // Fails only if all of them have ended.
            let _ = match (rank.own_group, from_kernel) {
                (true, _) => kill_process_group(rank.pid, signal),
                (false, false) => kill_process(rank.pid, signal),
                (false, true) => Ok(()),
            };
        }
    }

    /// Ctrl-Z: stops the ranks and then the launcher, and goes on with them when it is continued.
    fn suspend(&self, from_kernel: bool) {
        self.pass_on(Signal::TSTP, from_kernel);
        // Comes back when somebody has sent SIGCONT.
        let _ = kill_process(getpid(), Signal::STOP);
        self.pass_on(Signal::CONT, from_kernel);
    }

    /// To every process of the job, also those that left their rank's group.
    fn signal_everything(&self, signal: Signal) {
        let everything = self.left_over();
        if everything.is_empty() {
            self.pass_on(signal, false);
        }
        for process in everything {
            process.signal(signal, self.numbers);
            if signal != Signal::KILL {
                // Who is stopped cannot see that it is to end.
                process.signal(Signal::CONT, self.numbers);
            }
        }
    }

    fn reap(&mut self) {
        let mut ended: Vec<(usize, Ending)> = Vec::new();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if self.guard.as_ref().is_some_and(|guard| guard.pid() == pid) {
                        self.guard = None;
                    }
                    self.strangers.retain(|&stranger| stranger != pid.as_raw_nonzero().get());
                    self.last_sound = Instant::now();
                    let index = self.ranks.iter().position(|rank| rank.running && rank.pid == pid);
                    ended.extend(index.map(|index| (index, ending(status))));
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        // The order in which the system reports those that ended at once says nothing.
        ended.sort_by_key(|&(index, ending)| (ending.remoteness(), index));
        for &(index, ending) in &ended {
            self.ranks[index].running = false;
            self.server.announce(self.ranks[index].rank, ending);
            if let Some(guard) = &mut self.guard {
                guard.remove(self.ranks[index].pid);
            }
        }
        for (index, ending) in ended {
            self.note_ending(self.ranks[index].rank, ending);
        }
    }

    fn note_ending(&mut self, rank: Rank, ending: Ending) {
        if is_success(ending) {
            return;
        }
        self.outcome.failed(rank, ending, self.running(), self.ladder.has_killed());
        if !self.keep_going {
            // The others hear of it at the same time, and have something to say about it.
            self.ladder.begin(Instant::now(), true);
        }
    }

    /// Writes what is left, and last of all what went wrong.
    fn finish(&mut self) {
        // What was killed last may not have been waited for.
        self.reap();
        for rank in &mut self.ranks {
            for mut stream in rank.streams.drain(..) {
                let sink = match stream.target {
                    Target::Out => &mut self.out,
                    Target::Err => &mut self.err,
                };
                stream.lines.finish(sink.lines());
            }
        }
        self.flush_all();
        for process in self.left_over() {
            let text = format!("foldcast run: process {} could not be ended and is left\n", process.pid);
            self.err.lines().extend_from_slice(text.as_bytes());
        }
        // The ends of the last connections.
        self.server.serve();
        self.outcome.settle(self.server.left());
        let message = self.outcome.message().unwrap_or_default();
        self.err.lines().extend_from_slice(message.as_bytes());
        self.flush_all();
    }

    /// As slowly as the reader wants; but a signal ends it.
    fn flush_all(&mut self) {
        self.write();
        loop {
            if self.abandoned || (self.out.is_empty() && self.err.is_empty()) {
                break;
            }
            self.wait(None);
        }
    }
}

fn ending(status: WaitStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => Ending::Exited(status),
        (None, Some(signal)) => Ending::Signalled(signal),
        (None, None) => Ending::Unknown,
    }
}
