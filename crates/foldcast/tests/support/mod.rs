#![allow(dead_code, reason = "each test program uses its part")]
//! Starts a test again as ranks of a job, and calls that tests share.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Group, InitOptions, OwnedBuffers, Reduction, Result, Timeout,
    bytes_of, bytes_of_mut,
};

/// A test that takes this long hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

/// Starts `size` ranks of the test that calls it and returns how they ended, or runs `body` if this is such a rank.
pub(crate) fn ranks(test: &str, size: usize, body: fn(&Communicator)) -> Vec<ExitStatus> {
    ranks_with(test, &vec![[]; size], body)
}

/// As [`ranks`], where each rank has these variables too.
pub(crate) fn ranks_with<const N: usize>(
    test: &str,
    variables: &[[(&str, &str); N]],
    body: fn(&Communicator),
) -> Vec<ExitStatus> {
    let size = variables.len();
    if std::env::var("FOLDCAST_RANK").is_ok() {
        let communicator = Communicator::init(InitOptions::default()).expect("the ranks meet");
        body(&communicator);
        communicator.shutdown();
        std::process::exit(0);
    }
    let job = format!("{test}-{size}-{}", std::process::id());
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env("FOLDCAST_RANK", rank.to_string())
            .env("FOLDCAST_WORLD_SIZE", size.to_string())
            .env("FOLDCAST_JOB", &job)
            .envs(variables[rank])
            .stdin(Stdio::null())
            .spawn()
            .expect("a rank")
    };
    let mut children: Vec<Child> = (0..size).map(start).collect();
    let end = Instant::now() + WATCHDOG;
    let mut statuses = Vec::new();
    for child in &mut children {
        loop {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                statuses.push(status);
                break;
            }
            if Instant::now() > end {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    statuses
}

pub(crate) fn all_well(statuses: &[ExitStatus]) {
    assert!(statuses.iter().all(ExitStatus::success), "{statuses:?}");
}

pub(crate) fn sum(group: &Group, input: &[f32], options: &CallOptions<'_>) -> Result<Vec<f32>> {
    let mut output = vec![0.0f32; input.len()];
    let buffers = Buffers::Separate { input: bytes_of(input), output: bytes_of_mut(&mut output) };
    group.all_reduce(DataType::Float32, Reduction::Sum, buffers, options)?;
    Ok(output)
}

pub(crate) struct Owned {
    pub(crate) input: Vec<f32>,
    pub(crate) output: Vec<f32>,
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: bytes_of(&self.input), output: bytes_of_mut(&mut self.output) }
    }
}

pub(crate) type Received = mpsc::Receiver<Result<Vec<f32>>>;

pub(crate) fn submit(group: &Group, input: Vec<f32>, options: &CallOptions<'_>) -> Result<Received> {
    let (sender, receiver) = mpsc::channel();
    let output = vec![0.0; input.len()];
    let done = Box::new(move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.len();
        let output: Vec<f32> = buffers.output(all).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        sender.send(result.map(|()| output)).expect("the test waits");
    });
    group.all_reduce_async(DataType::Float32, Reduction::Sum, Box::new(Owned { input, output }), options, done)?;
    Ok(receiver)
}

/// Bytes that no dtype is spared by: among floats there are NaNs, infinities and subnormals.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Starts a rank for each of these numbers of threads.
pub(crate) fn threads(test: &str, threads: &[&str], body: fn(&Communicator)) -> Vec<ExitStatus> {
    let variables: Vec<_> = threads.iter().map(|threads| [("FOLDCAST_THREADS", *threads)]).collect();
    ranks_with(test, &variables, body)
}

/// The result of calls that are too small to be cut, one for each piece of the input.
pub(crate) fn in_small_calls(group: &Group, dtype: DataType, reduction: Reduction, input: &[u8]) -> Vec<u8> {
    let mut output = vec![0; input.len()];
    for (input, output) in input.chunks(96 << 10).zip(output.chunks_mut(96 << 10)) {
        let buffers = Buffers::Separate { input, output };
        group.all_reduce(dtype, reduction, buffers, &CallOptions::DEFAULT).expect("a small call");
    }
    output
}

pub(crate) fn wait(receiver: &Received) -> Result<Vec<f32>> {
    receiver.recv_timeout(WATCHDOG).expect("the call ends")
}

pub(crate) fn number(communicator: &Communicator) -> f32 {
    f32::from(u16::try_from(communicator.rank().0).expect("few ranks"))
}

/// 0 + 1 + ... over the ranks.
pub(crate) fn total(size: usize) -> f32 {
    f32::from(u16::try_from(size * (size - 1) / 2).expect("few ranks"))
}

pub(crate) fn named(name: &str) -> CallOptions<'_> {
    CallOptions { name: Some(name), ..CallOptions::default() }
}

pub(crate) fn within(seconds: f64) -> Timeout {
    Timeout::from_seconds(Some(seconds)).expect("a time")
}
