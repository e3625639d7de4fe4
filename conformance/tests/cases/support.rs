//! Worlds whose ranks are threads, and calls on bytes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Communicator, Config, CostsFrom, DataType, Error, Group, InitOptions, OwnedBuffers, Rank,
    Reduction, Result,
};

/// A guard against hanging, not a promise of speed.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Names of the algorithms to force. Where one cannot do a call, the cheapest does it: so what is chosen without force is
/// tested too.
pub(crate) fn algorithms() -> Vec<&'static str> {
    foldcast::plans::all_reduce_algorithms()
}

/// Whether the long form of a test is asked for: see the README.
pub(crate) fn is_long() -> bool {
    std::env::var_os("CONFORMANCE_LONG").is_some()
}

/// Runs `body` in every rank of a world with this algorithm.
pub(crate) fn world(size: usize, algorithm: &'static str, body: impl Fn(&Communicator) + Sync) {
    world_with(size, |config| config.algorithm = Some(algorithm), body);
}

/// Runs `body` in every rank of a world, for each size and each algorithm.
pub(crate) fn worlds(sizes: &[usize], body: impl Fn(&Communicator) + Sync) {
    for algorithm in algorithms() {
        for size in sizes {
            world(*size, algorithm, &body);
        }
    }
}

/// Runs `body` in every rank of a world whose settings, those of each rank, `adapt` changes.
pub(crate) fn world_with(size: usize, adapt: impl Fn(&mut Config) + Sync, body: impl Fn(&Communicator) + Sync) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let job = format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let all_done = Barrier::new(size);
    let run = |rank: usize| {
        let mut config = Config {
            rank: Rank::from_index(rank),
            size,
            local_rank: rank,
            job: job.clone(),
            init_timeout: Some(WATCHDOG),
            timeout: Some(WATCHDOG),
            threads: 2,
            costs: CostsFrom::BuiltIn,
            ..Config::from_env().expect("a test run is no rank")
        };
        adapt(&mut config);
        let met = Communicator::with_config(config, InitOptions::default());
        let outcome = catch_unwind(AssertUnwindSafe(|| match &met {
            Ok(communicator) => body(communicator),
            Err(error) => panic!("the ranks do not meet: {error}"),
        }));
        if let (Ok(communicator), Err(_)) = (&met, &outcome) {
            communicator.abort();
        }
        // Nobody leaves while another one may still need it.
        all_done.wait();
        if let Ok(communicator) = met {
            communicator.shutdown();
        }
        outcome
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    for outcome in outcomes {
        if let Ok(Err(panic)) | Err(panic) = outcome {
            resume_unwind(panic);
        }
    }
}

pub(crate) fn named(name: &str) -> CallOptions<'_> {
    CallOptions { name: Some(name), ..CallOptions::default() }
}

/// An allreduce out of place.
pub(crate) fn reduce(
    group: &Group,
    dtype: DataType,
    reduction: Reduction,
    input: &[u8],
    options: &CallOptions<'_>,
) -> Result<Vec<u8>> {
    let mut output = vec![0xAA; input.len()];
    group.all_reduce(dtype, reduction, Buffers::Separate { input, output: &mut output }, options)?;
    Ok(output)
}

/// A sum of float32.
pub(crate) fn sum(group: &Group, input: &[f32], options: &CallOptions<'_>) -> Result<Vec<f32>> {
    let output = reduce(group, DataType::Float32, Reduction::Sum, foldcast::bytes_of(input), options)?;
    Ok(output.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
}

/// A call that ranks disagree in: the error must be a mismatch.
pub(crate) fn mismatch<T: std::fmt::Debug>(result: Result<T>) -> Box<foldcast::error::Mismatch> {
    match result {
        Err(Error::Mismatch(mismatch)) => mismatch,
        other => panic!("no mismatch: {other:?}"),
    }
}

struct Owned {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::Separate { input: &self.input, output: &mut self.output }
    }
}

/// A call on its way.
pub(crate) struct Submitted(mpsc::Receiver<Result<Vec<u8>>>);

impl Submitted {
    pub(crate) fn wait(&self) -> Result<Vec<u8>> {
        self.0.recv_timeout(WATCHDOG).expect("the call ends")
    }
}

pub(crate) fn submit(
    group: &Group,
    dtype: DataType,
    reduction: Reduction,
    input: &[u8],
    options: &CallOptions<'_>,
) -> Result<Submitted> {
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
        let mut buffers = buffers.buffers();
        let all = 0..buffers.len();
        sender.send(result.map(|()| buffers.output(all).to_vec())).expect("the test waits");
    });
    let buffers = Box::new(Owned { input: input.to_vec(), output: vec![0xAA; input.len()] });
    group.all_reduce_async(dtype, reduction, buffers, options, done)?;
    Ok(Submitted(receiver))
}
