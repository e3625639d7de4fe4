//! Measures small calls between two ranks or more: what `ci/figures.sh` asks the engine, from Rust.
//!
//! ```sh
//! foldcast run -n 2 -- target/release/examples/figures blocking|async|each
//! ```
//!
//! All calls are allreduces of 8 bytes, out of place, back to back. Rank 0 prints one line of JSON, times in us:
//!
//! | argument | what is measured |
//! |---|---|
//! | `blocking` | blocking calls: a list with the mean time of a call for each batch |
//! | `async` | the same; calls that are submitted and waited for; such with 16 in flight; and such that the completion of the one before submits, so that no thread has to be woken; a batch of each in turn |
//! | `each` | every single blocking call, for about a second: median, 99 of 100, mean and worst; a reading of the clock is in each |
//!
//! A batch begins at a barrier; its time, and each of the four, is the slowest rank's.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Group, InitOptions, OwnedBuffers, Reduction, Result, bytes_of,
    bytes_of_mut,
};
use serde_json::{Value, json};

const BATCHES: usize = 31;
const CALLS: u32 = 2_000;
const IN_FLIGHT: usize = 16;
/// How long single calls are measured.
const EACH: Duration = Duration::from_secs(1);

struct Owned {
    input: [f32; 2],
    output: [f32; 2],
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: bytes_of(&self.input), output: bytes_of_mut(&mut self.output) }
    }
}

fn sum(group: &Group, input: &[f32; 2], output: &mut [f32; 2]) -> Result<()> {
    let buffers = Buffers::Separate { input: bytes_of(input), output: bytes_of_mut(output) };
    group.all_reduce(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default())
}

/// The largest of the ranks' numbers.
fn largest(group: &Group, mut value: f64) -> Result<f64> {
    let buffers = Buffers::InPlace(bytes_of_mut(core::slice::from_mut(&mut value)));
    group.all_reduce(DataType::Float64, Reduction::Max, buffers, &CallOptions::default())?;
    Ok(value)
}

/// The mean time of a call on the slowest rank, in us.
fn batch(group: &Group, calls: u32, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    group.barrier(&CallOptions::default())?;
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    largest(group, start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

fn blocking_batch(group: &Group) -> Result<f64> {
    let (input, mut output) = ([1.0, 2.0], [0.0; 2]);
    let time = batch(group, CALLS, || sum(group, &input, &mut output))?;
    // All ranks give the same.
    assert_eq!(output[1], 2.0 * output[0], "the sum of the ranks' inputs");
    Ok(time)
}

fn owned() -> Box<dyn OwnedBuffers> {
    Box::new(Owned { input: [1.0, 2.0], output: [0.0; 2] })
}

/// Submits and waits as a program does that has nothing else to do: with so many calls in flight, the thread makes
/// them go on until the oldest has ended.
fn async_batch(group: &Group, in_flight: usize) -> Result<f64> {
    let mut idle: Vec<_> = (0..in_flight).map(|_| owned()).collect();
    let mut flying = VecDeque::new();
    batch(group, CALLS, || {
        let buffers = match idle.pop() {
            Some(buffers) => buffers,
            None => wait(group, &mut flying)?,
        };
        flying.push_back(submit(group, buffers)?);
        if in_flight == 1 {
            idle.push(wait(group, &mut flying)?);
        }
        Ok(())
    })
    .and_then(|time| {
        while !flying.is_empty() {
            wait(group, &mut flying)?;
        }
        Ok(time)
    })
}

/// Where a completion leaves how its call ended.
type End = Arc<OnceLock<Result<()>>>;

/// Where it leaves the buffers.
type Returned = Arc<Mutex<Option<Box<dyn OwnedBuffers>>>>;

fn submit(group: &Group, buffers: Box<dyn OwnedBuffers>) -> Result<(End, Returned)> {
    let (end, returned) = (End::default(), Returned::default());
    let (tell, place) = (Arc::clone(&end), Arc::clone(&returned));
    let done = Box::new(move |result: Result<()>, buffers| {
        *place.lock().expect("nobody panics with it") = Some(buffers);
        let _ = tell.set(result);
    });
    let options = CallOptions { light_completion: true, ..CallOptions::DEFAULT };
    group.all_reduce_async(DataType::Float32, Reduction::Sum, buffers, &options, done)?;
    Ok((end, returned))
}

/// Waits for the oldest; gives its buffers back.
fn wait(group: &Group, flying: &mut VecDeque<(End, Returned)>) -> Result<Box<dyn OwnedBuffers>> {
    let (end, returned) = flying.pop_front().expect("one is in flight");
    group.progress_until(&|| end.get().is_some(), None, None);
    end.get().expect("it was waited for").clone()?;
    let buffers = returned.lock().expect("nobody panics with it").take();
    Ok(buffers.expect("they are there before the end is told"))
}

/// Each call is submitted by the completion of the one before; the thread waits for the last.
fn chained_batch(group: &Group) -> Result<f64> {
    let call = || {
        let (sender, receiver) = channel();
        chain(group.clone(), owned(), CALLS, sender);
        receiver.recv().expect("the last call ends")
    };
    Ok(batch(group, 1, call)? / f64::from(CALLS))
}

fn chain(group: Group, buffers: Box<dyn OwnedBuffers>, left: u32, end: Sender<Result<()>>) {
    let (again, failed) = (group.clone(), end.clone());
    let done = Box::new(move |result: Result<()>, buffers| match result {
        Ok(()) if left > 1 => chain(again, buffers, left - 1, end),
        result => {
            let _ = end.send(result);
        }
    });
    if let Err(error) =
        group.all_reduce_async(DataType::Float32, Reduction::Sum, buffers, &CallOptions::default(), done)
    {
        let _ = failed.send(Err(error));
    }
}

fn blocking(group: &Group) -> Result<Value> {
    blocking_batch(group)?;
    let times: Result<Vec<f64>> = (0..BATCHES).map(|_| blocking_batch(group)).collect();
    Ok(json!({ "blocking": times? }))
}

fn both(group: &Group) -> Result<Value> {
    let [mut blocking, mut one, mut many, mut chained] = [const { Vec::new() }; 4];
    for _ in 0..=BATCHES {
        blocking.push(blocking_batch(group)?);
        // The progress thread has slept meanwhile.
        async_batch(group, 1)?;
        one.push(async_batch(group, 1)?);
        many.push(async_batch(group, IN_FLIGHT)?);
        chained.push(chained_batch(group)?);
    }
    Ok(json!({ "blocking": blocking[1..], "async": one[1..], "in flight": many[1..], "chained": chained[1..] }))
}

fn each(group: &Group) -> Result<Value> {
    let (input, mut output) = ([1.0, 2.0], [0.0; 2]);
    let mut times: Vec<Duration> = Vec::with_capacity(8 << 20);
    group.barrier(&CallOptions::default())?;
    let begun = Instant::now();
    // All ranks go on until one has had enough.
    while largest(group, begun.elapsed().as_secs_f64())? < EACH.as_secs_f64() {
        for _ in 0..1000 {
            let start = Instant::now();
            sum(group, &input, &mut output)?;
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let calls = u32::try_from(times.len()).expect("not so many calls a second");
    let figures = [
        ("median", us(times[times.len() / 2])),
        ("p99", us(times[times.len() * 99 / 100])),
        ("mean", us(times.iter().sum::<Duration>()) / f64::from(calls)),
        ("worst", us(times[times.len() - 1])),
    ];
    let mut found = json!({ "calls": calls });
    for (name, value) in figures {
        found[name] = json!(largest(group, value)?);
    }
    Ok(found)
}

#[allow(clippy::print_stdout, reason = "a program that prints figures")]
fn run(what: &str) -> Result<()> {
    let communicator = Communicator::init(InitOptions::default())?;
    let group = communicator.world();
    let found = match what {
        "async" => both(&group)?,
        "each" => each(&group)?,
        _ => blocking(&group)?,
    };
    if communicator.rank().0 == 0 {
        println!("{found}");
    }
    communicator.shutdown();
    Ok(())
}

#[allow(clippy::print_stderr, reason = "a program that says what went wrong")]
fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_default();
    if !["blocking", "async", "each"].contains(&what.as_str()) {
        eprintln!("expected blocking, async or each, got {what:?}");
        return ExitCode::FAILURE;
    }
    match run(&what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
