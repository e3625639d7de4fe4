//! Random calls between the ranks of a job for as long as one likes, every element of every result compared with an oracle.
//!
//! ```sh
//! foldcast run -n 4 -- target/release/examples/soak [CALLS [SEED]]
//! ```
//!
//! What the ranks must agree on (size, data type, reduction, the way of calling) follows from the seed and the number of the
//! call; what they need not agree on (alignment, in place or not, the order of named calls, when results are looked at) from the
//! rank too, such as where its arrays are: some are in memory that all ranks read where it is. Sizes go from nothing to 4 MiB, most of them small. Calls are blocking or submitted, named or not, and some run
//! while others are pending; now and then the ranks disagree, which must be a mismatch on all and lose nothing. A wrong element
//! is printed with the command that repeats it. `ci/soak.sh` runs it with 2 to 8 ranks, and on one core.

use std::ops::DerefMut;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Error, Group, InitOptions, OwnedBuffers, Reduction, Result,
};

#[allow(dead_code, clippy::unwrap_used, reason = "the oracle of the kernels' tests, of which this uses a part")]
#[path = "../../kernels/tests/fold/oracle.rs"]
mod oracle;

/// The largest array.
const MOST_BYTES: usize = 4 << 20;
/// Most calls are not larger than this.
const OFTEN_BYTES: usize = 64 << 10;
/// Submitted calls that are pending at most.
const MOST_PENDING: usize = 6;
/// Bytes beside a result that nobody may write.
const GUARD: usize = 64;
/// Ranks take their inputs from one pool, beginning at places that differ by no whole number of lines.
const POOL_BYTES: usize = MOST_BYTES + (1 << 16);

/// Pseudo-random numbers: splitmix64, by Steele, Lea and Flood, 2014.
struct Random(u64);

impl Random {
    fn of(seed: u64, call: u64, stream: u64) -> Random {
        let mut random =
            Random(seed ^ call.wrapping_mul(0xa076_1d64_78bd_642f) ^ stream.wrapping_mul(0xe703_7ed1_a0b4_28db));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).expect("64 bits")).expect("less than a usize")
    }

    /// One in `of` times.
    fn seldom(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// What all ranks agree on in a call.
#[derive(Clone, Debug)]
struct Case {
    number: u64,
    dtype: DataType,
    reduction: Reduction,
    count: usize,
    named: bool,
    submitted: bool,
    /// Named calls that are submitted together, in an order of each rank's own.
    burst: usize,
    /// Whether the last rank asks for something else.
    mismatch: bool,
    /// Whether all ranks have arrays that the others can read, or none; else each as it likes.
    readable: Option<bool>,
}

impl Case {
    fn new(seed: u64, number: u64) -> Case {
        let mut random = Random::of(seed, number, 0);
        let dtype = DataType::ALL[random.below(DataType::ALL.len())];
        let reduction = Reduction::ALL[random.below(Reduction::ALL.len())];
        let most = if random.seldom(8) { MOST_BYTES } else { OFTEN_BYTES };
        // Equally often of every order of magnitude.
        let magnitude = 1usize << random.below(usize::try_from(most.ilog2()).expect("small") + 1);
        let bytes = (magnitude + random.below(magnitude)).min(most);
        let count = if random.seldom(50) { 0 } else { bytes / dtype.size() };
        let (named, submitted) = (random.seldom(3), random.seldom(3));
        let burst = if named && submitted { 1 + random.below(MOST_PENDING) } else { 1 };
        let mismatch = !named && !submitted && random.seldom(200);
        // To make such memory costs system calls: where it makes no difference, seldom.
        let worth_it = bytes >= 512 << 10 || random.seldom(50);
        let readable = if worth_it { [Some(true), Some(true), None][random.below(3)] } else { Some(false) };
        Case { number, dtype, reduction, count, named, submitted, burst, mismatch, readable }
    }

    fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// The input of a rank, as a part of the pool.
    fn input<'p>(&self, pool: &'p [u8], part: usize, rank: usize) -> &'p [u8] {
        let stream = u64::try_from(1000 * (part + 1) + rank).expect("64 bits");
        let elements = (POOL_BYTES - self.bytes()) / self.dtype.size();
        let start = Random::of(self.number, stream, 1).below(elements) * self.dtype.size();
        &pool[start..start + self.bytes()]
    }

    /// The first element that is not the canonical tree over all ranks: its index, got and wanted.
    fn wrong(&self, pool: &[u8], part: usize, ranks: usize, result: &[u8]) -> Option<(usize, Vec<u8>, Vec<u8>)> {
        let size = self.dtype.size();
        let inputs: Vec<&[u8]> = (0..ranks).map(|rank| self.input(pool, part, rank)).collect();
        let mut elements = vec![oracle::Element::Signed(0); ranks];
        let mut wanted = [0; 8];
        for (index, got) in result.chunks_exact(size).enumerate() {
            for (element, input) in elements.iter_mut().zip(&inputs) {
                *element = oracle::Element::decode(self.dtype, &input[index * size..(index + 1) * size]);
            }
            let mut distance = 1;
            while distance < ranks {
                for at in (0..ranks - distance).step_by(2 * distance) {
                    elements[at] = oracle::combine(self.reduction, elements[at], elements[at + distance]);
                }
                distance *= 2;
            }
            elements[0].encode(self.dtype, &mut wanted[..size]);
            if *got != wanted[..size] {
                return Some((index, got.to_vec(), wanted[..size].to_vec()));
            }
        }
        None
    }
}

/// Private memory, or such that other ranks can read.
type Bytes = Box<dyn DerefMut<Target = [u8]> + Send>;

/// The memory of one call: any alignment, guards around the result.
struct Memory {
    input: Bytes,
    output: Bytes,
    /// Where input and output begin, and how long they are.
    at: (usize, usize),
    bytes: usize,
    in_place: bool,
}

impl Memory {
    fn new(random: &mut Random, input: &[u8], mut room: impl FnMut(usize) -> Bytes) -> Memory {
        let bytes = input.len();
        let at = (random.below(65), GUARD + random.below(65));
        let (input_room, output) = (room(at.0 + bytes), room(at.1 + bytes + GUARD));
        let mut memory = Memory { input: input_room, output, at, bytes, in_place: random.seldom(3) };
        memory.output.fill(0xA5);
        memory.input[at.0..].copy_from_slice(input);
        if memory.in_place {
            memory.output[at.1..at.1 + bytes].copy_from_slice(input);
        }
        memory
    }

    fn result(&self) -> &[u8] {
        &self.output[self.at.1..self.at.1 + self.bytes]
    }

    /// What was written that is no result.
    fn is_spoilt(&self, input: &[u8]) -> bool {
        let (before, rest) = self.output.split_at(self.at.1);
        let mut guards = before.iter().chain(&rest[self.bytes..]);
        guards.any(|byte| *byte != 0xA5) || self.input[self.at.0..] != *input
    }
}

impl OwnedBuffers for Memory {
    fn buffers(&mut self) -> Buffers<'_> {
        let output = &mut self.output[self.at.1..self.at.1 + self.bytes];
        if self.in_place {
            Buffers::InPlace(output)
        } else {
            Buffers::Separate { input: &self.input[self.at.0..], output }
        }
    }
}

/// A submitted call: buffers come back as they were given, so what to compare them with is kept here.
struct Pending {
    case: Case,
    part: usize,
    received: mpsc::Receiver<(Result<()>, Vec<u8>)>,
}

struct Soak {
    communicator: Communicator,
    group: Group,
    seed: u64,
    rank: usize,
    ranks: usize,
    pool: Vec<u8>,
    pending: Vec<Pending>,
}

type Outcome = core::result::Result<(), String>;

impl Soak {
    fn memory(&self, case: &Case, part: usize) -> Memory {
        let stream = u64::try_from(100 * (part + 1) + self.rank).expect("64 bits");
        let mut own = Random::of(self.seed, case.number, 50_000 + stream);
        let room = |bytes: usize| -> Bytes {
            match case.readable.unwrap_or_else(|| own.seldom(2)) {
                true => Box::new(self.communicator.empty(bytes).expect("a few MiB of memory")),
                false => Box::new(vec![0; bytes]),
            }
        };
        let input = case.input(&self.pool, part, self.rank);
        Memory::new(&mut Random::of(self.seed, case.number, stream), input, room)
    }

    fn failed(&self, case: &Case, what: &str) -> String {
        let Soak { rank, ranks, seed, .. } = self;
        let calls = case.number + 1;
        format!("rank {rank}: {case:?}: {what}\nrepeat: foldcast run -n {ranks} -- soak {calls} {seed}")
    }

    fn check(&self, case: &Case, part: usize, result: &[u8]) -> Outcome {
        match case.wrong(&self.pool, part, self.ranks, result) {
            None => Ok(()),
            Some((index, got, wanted)) => {
                Err(self.failed(case, &format!("element {index} of part {part} is {got:x?} instead of {wanted:x?}")))
            }
        }
    }

    fn run(&mut self, case: &Case) -> Outcome {
        let mut own = Random::of(self.seed, case.number, 10_000 + u64::try_from(self.rank).expect("64 bits"));
        if case.submitted {
            let mut parts: Vec<usize> = (0..case.burst).collect();
            for at in (1..parts.len()).rev() {
                parts.swap(at, own.below(at + 1));
            }
            for part in parts {
                self.submit(case, part)?;
            }
        } else {
            self.block(case)?;
        }
        // What is pending is looked at when this rank likes to.
        while self.pending.len() > MOST_PENDING || (!self.pending.is_empty() && own.seldom(3)) {
            let pending = self.pending.swap_remove(own.below(self.pending.len()));
            self.wait(&pending)?;
        }
        Ok(())
    }

    fn block(&self, case: &Case) -> Outcome {
        let mut memory = self.memory(case, 0);
        let name = case.named.then_some("blocking");
        let options = CallOptions { name, ..CallOptions::default() };
        let differs = case.mismatch && self.rank + 1 == self.ranks && self.ranks > 1;
        let reduction = match case.reduction {
            Reduction::Sum if differs => Reduction::Max,
            _ if differs => Reduction::Sum,
            reduction => reduction,
        };
        let ended = self.group.all_reduce(case.dtype, reduction, memory.buffers(), &options);
        match (case.mismatch && self.ranks > 1, ended) {
            (true, Err(Error::Mismatch(_))) => return Ok(()),
            (false, Ok(())) => {}
            (_, ended) => return Err(self.failed(case, &format!("it ended with {ended:?}"))),
        }
        if memory.is_spoilt(case.input(&self.pool, 0, self.rank)) {
            return Err(self.failed(case, "the input, or memory beside the output, was written"));
        }
        self.check(case, 0, memory.result())
    }

    fn submit(&mut self, case: &Case, part: usize) -> Outcome {
        let memory = Box::new(self.memory(case, part));
        let name = format!("submitted {part}");
        let options = CallOptions { name: case.named.then_some(&*name), ..CallOptions::default() };
        let (sender, received) = mpsc::channel();
        let done = move |result: Result<()>, mut buffers: Box<dyn OwnedBuffers>| {
            let mut buffers = buffers.buffers();
            let all = 0..buffers.len();
            // Nobody receives it if another call has failed.
            let _ = sender.send((result, buffers.output(all).to_vec()));
        };
        let submitted = self.group.all_reduce_async(case.dtype, case.reduction, memory, &options, Box::new(done));
        submitted.map_err(|error| self.failed(case, &format!("it was refused: {error}")))?;
        self.pending.push(Pending { case: case.clone(), part, received });
        Ok(())
    }

    fn wait(&self, pending: &Pending) -> Outcome {
        let Pending { case, part, received } = pending;
        match received.recv_timeout(Duration::from_secs(600)) {
            Ok((Ok(()), result)) => self.check(case, *part, &result),
            Ok((Err(error), _)) => Err(self.failed(case, &error.to_string())),
            Err(_) => Err(self.failed(case, "it does not end")),
        }
    }
}

/// Bytes that make numbers of every kind in every data type: ordinary ones, and NaNs, infinities, zeros and subnormals.
fn pool(seed: u64) -> Vec<u8> {
    const SPECIAL: [u64; 8] = [
        0,
        0x8000_0000_8000_0000,
        0x7f80_0000_7fc0_0001,
        0xff80_0000_0000_0001,
        0x7ff0_0000_0000_0000,
        0xfff8_0000_0000_0000,
        0x7c00_fc00_7e01_8001,
        0x3f80_3c00_bf80_0080,
    ];
    let mut random = Random::of(seed, 0, 7);
    let mut bytes = Vec::with_capacity(POOL_BYTES);
    while bytes.len() < POOL_BYTES {
        let word = if random.seldom(16) { SPECIAL[random.below(SPECIAL.len())] } else { random.next() };
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

fn soak(calls: u64, seed: u64) -> Outcome {
    let communicator = Communicator::init(InitOptions::default()).map_err(|error| error.to_string())?;
    let (rank, ranks) = (communicator.rank().index(), communicator.size());
    let (group, pool) = (communicator.world(), pool(seed));
    let mut soak = Soak { communicator, group, seed, rank, ranks, pool, pending: Vec::new() };
    for number in 0..calls {
        soak.run(&Case::new(seed, number))?;
    }
    for pending in std::mem::take(&mut soak.pending) {
        soak.wait(&pending)?;
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "a program that reports")]
fn main() -> ExitCode {
    let number = |at: usize, default: u64| match std::env::args().nth(at) {
        None => Some(default),
        Some(text) => text.parse().ok(),
    };
    let (Some(calls), Some(seed)) = (number(1, 1000), number(2, 1)) else {
        eprintln!("soak [CALLS [SEED]]: two whole numbers");
        return ExitCode::from(2);
    };
    match soak(calls, seed) {
        Ok(()) => {
            println!("soak: {calls} calls of seed {seed} are right");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("soak: FAILED: {why}");
            ExitCode::FAILURE
        }
    }
}
