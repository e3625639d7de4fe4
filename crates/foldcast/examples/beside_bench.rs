//! Times small named calls while a large one of the same group is in flight.
//!
//! ```sh
//! foldcast run -n 2 -- target/release/examples/beside_bench 67108864 8
//! ```
//!
//! The arguments are the bytes of the large and of the small calls. Every rank submits a large allreduce, and behind it some
//! small ones, each when the one before has ended. Rank 0 prints the median and the worst time from submission to completion
//! of the small ones, the time of the large ones with them and without, and the time of small ones alone.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use foldcast::{Buffers, CallOptions, Communicator, DataType, Group, InitOptions, OwnedBuffers, Reduction, Result};

const ROUNDS: usize = 30;

/// Small calls behind each large one.
const SMALL_CALLS: usize = 4;

struct Owned {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

/// A call on its way: gives its buffers back, and the moment in which it ended.
type Ends = Receiver<Result<(Instant, Box<dyn OwnedBuffers>)>>;

fn submit(group: &Group, name: &str, buffers: Box<dyn OwnedBuffers>) -> Result<Ends> {
    let (sender, receiver) = channel();
    let options = CallOptions { name: Some(name), ..CallOptions::default() };
    let done = Box::new(move |result: Result<()>, buffers| {
        let _ = sender.send(result.map(|()| (Instant::now(), buffers)));
    });
    group.all_reduce_async(DataType::Float32, Reduction::Sum, buffers, &options, done)?;
    Ok(receiver)
}

fn buffers(bytes: usize) -> Box<dyn OwnedBuffers> {
    Box::new(Owned { input: vec![0; bytes], output: vec![1; bytes] })
}

fn median(values: &mut [Duration]) -> f64 {
    values.sort_unstable();
    values[values.len() / 2].as_secs_f64() * 1e6
}

#[derive(Default)]
struct Times {
    small: Vec<Duration>,
    small_alone: Vec<Duration>,
    large: Vec<Duration>,
    large_alone: Vec<Duration>,
}

/// Makes the call and waits for it; returns how long it took and the buffers.
fn call(group: &Group, name: &str, buffers: Box<dyn OwnedBuffers>) -> Result<(Duration, Box<dyn OwnedBuffers>)> {
    let start = Instant::now();
    let (end, buffers) = submit(group, name, buffers)?.recv().expect("each call ends")?;
    Ok((end - start, buffers))
}

fn run(group: &Group, bytes: usize, small_bytes: usize) -> Result<Times> {
    let mut times = Times::default();
    let (mut large, mut small) = (buffers(bytes), buffers(small_bytes));
    for _ in 0..ROUNDS {
        let mut time;
        group.barrier(&CallOptions::default())?;
        (time, large) = call(group, "large", large)?;
        times.large_alone.push(time);
        for _ in 0..SMALL_CALLS {
            (time, small) = call(group, "small", small)?;
            times.small_alone.push(time);
        }
        group.barrier(&CallOptions::default())?;
        let begun = Instant::now();
        let ends = submit(group, "large", large)?;
        for _ in 0..SMALL_CALLS {
            (time, small) = call(group, "small", small)?;
            times.small.push(time);
        }
        let (end, back) = ends.recv().expect("each call ends")?;
        times.large.push(end - begun);
        large = back;
    }
    Ok(times)
}

#[allow(clippy::print_stdout, reason = "a program that prints figures")]
fn main() -> ExitCode {
    let number = |at| std::env::args().nth(at).map(|text| text.parse::<usize>().expect("a number of bytes"));
    let (large, small) = (number(1).unwrap_or(64 << 20), number(2).unwrap_or(8));
    let times = || {
        let communicator = Communicator::init(InitOptions::default())?;
        Ok::<_, foldcast::Error>((communicator.rank(), run(&communicator.world(), large, small)?))
    };
    match times() {
        Ok((rank, mut times)) => {
            if rank.0 == 0 {
                let first: Vec<Duration> = times.small.iter().step_by(SMALL_CALLS).copied().collect();
                let worst = first.iter().max().copied().unwrap_or_default().as_secs_f64() * 1e6;
                println!(
                    "small: first {:.1} us (worst {worst:.1}), all {:.1} us, alone {:.1} us; large: {:.0} us, alone {:.0} us",
                    median(&mut first.clone()),
                    median(&mut times.small),
                    median(&mut times.small_alone),
                    median(&mut times.large),
                    median(&mut times.large_alone),
                );
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
