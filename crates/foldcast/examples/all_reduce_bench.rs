//! Times all-reduce between the ranks of a job, and checks every element.
//!
//! ```sh
//! foldcast run -n 2 -- target/release/examples/all_reduce_bench 8:f32:sum:out,67108864:f32:sum:in
//! ```
//!
//! A case is `bytes:dtype:op:mode`, with dtype f32, f16, bf16 or i32, op sum or max, and mode out (of place) or in (place).
//! For each, rank 0 prints `bytes dtype ranks time_us op mode ok`. Per case: the result is checked, then batches run, each
//! after a barrier; a batch's time is the slowest rank's. time_us is the median over that third of the batches in which
//! the ranks waited least on a run queue, since other programs may use the processors; med= is over all, min= the best.
//! BENCH_CASE_MS (400) is the time for a case, BENCH_SAMPLES (15) the number of batches; with BENCH_DIRTY set the input is
//! written anew before each call, untimed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use foldcast::{Buffers, CallOptions, Communicator, DataType, Group, InitOptions, Reduction, Result};

/// Page-aligned memory, as the user's large arrays are.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        const PAGE: usize = 4096;
        let memory = vec![1u8; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Aligned { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[derive(Clone)]
struct Case {
    bytes: usize,
    dtype_name: String,
    dtype: DataType,
    reduction: Reduction,
    in_place: bool,
}

impl Case {
    fn parse(text: &str) -> Option<Case> {
        let mut fields = text.split(':');
        let bytes = fields.next()?.parse().ok()?;
        let dtype_name = fields.next()?.to_owned();
        let dtype = match dtype_name.as_str() {
            "f32" => DataType::Float32,
            "f16" => DataType::Float16,
            "bf16" => DataType::Bfloat16,
            "i32" => DataType::Int32,
            _ => return None,
        };
        let reduction = fields.next()?.parse().ok()?;
        let in_place = match fields.next()? {
            "in" => true,
            "out" => false,
            _ => return None,
        };
        Some(Case { bytes, dtype_name, dtype, reduction, in_place })
    }

    /// The element for a small whole number.
    fn encode(&self, value: u16) -> Vec<u8> {
        match self.dtype {
            DataType::Float16 => half::f16::from_f32(f32::from(value)).to_le_bytes().to_vec(),
            DataType::Bfloat16 => half::bf16::from_f32(f32::from(value)).to_le_bytes().to_vec(),
            DataType::Float32 => f32::from(value).to_le_bytes().to_vec(),
            _ => i32::from(value).to_le_bytes().to_vec(),
        }
    }

    /// Fills with a pattern of seven elements, each made from its place in the pattern.
    fn fill(&self, bytes: &mut [u8], value: impl Fn(u16) -> u16) {
        let pattern: Vec<u8> = (0..7).flat_map(|at| self.encode(value(at))).collect();
        for chunk in bytes.chunks_mut(pattern.len()) {
            chunk.copy_from_slice(&pattern[..chunk.len()]);
        }
    }

    fn expected(&self, ranks: u16) -> Vec<u8> {
        let mut expected = vec![0; self.bytes];
        self.fill(&mut expected, |at| match self.reduction {
            Reduction::Sum => ranks * at + ranks * (ranks - 1) / 2,
            _ => at + ranks - 1,
        });
        expected
    }
}

/// The largest of the ranks' numbers.
fn max_all(group: &Group, value: f64) -> Result<f64> {
    let mut bytes = value.to_le_bytes();
    group.all_reduce(DataType::Float64, Reduction::Max, Buffers::InPlace(&mut bytes), &CallOptions::default())?;
    Ok(f64::from_le_bytes(bytes))
}

/// How long this process's threads have waited on a run queue, in ns.
fn run_delay() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let delay = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<f64>().ok()
    };
    tasks.flatten().filter_map(delay).sum()
}

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

struct Bench<'a> {
    group: &'a Group,
    case: Case,
    input: Aligned,
    output: Aligned,
}

impl Bench<'_> {
    fn call(&mut self) -> Result<()> {
        let output = self.output.bytes_mut();
        let buffers = if self.case.in_place {
            Buffers::InPlace(output)
        } else {
            Buffers::Separate { input: self.input.bytes(), output }
        };
        self.group.all_reduce(self.case.dtype, self.case.reduction, buffers, &CallOptions::default())
    }

    fn calls(&mut self, count: u32) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            self.call()?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    }

    /// Calls whose input is written anew before each, untimed.
    fn dirty_calls(&mut self, count: u32, source: &[u8]) -> Result<f64> {
        let mut total = Duration::ZERO;
        for _ in 0..count {
            let target = if self.case.in_place { self.output.bytes_mut() } else { self.input.bytes_mut() };
            target.copy_from_slice(source);
            self.group.barrier(&CallOptions::default())?;
            let start = Instant::now();
            self.call()?;
            total += start.elapsed();
        }
        Ok(total.as_secs_f64() * 1e6 / f64::from(count))
    }

    fn batch(&mut self, count: u32, source: Option<&[u8]>) -> Result<f64> {
        self.group.barrier(&CallOptions::default())?;
        match source {
            Some(source) => self.dirty_calls(count, source),
            None => self.calls(count),
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[allow(clippy::print_stdout, clippy::as_conversions, reason = "a program that prints figures")]
fn run_case(group: &Group, rank: u16, ranks: u16, case: &Case) -> Result<bool> {
    let mut input = Aligned::new(case.bytes);
    case.fill(input.bytes_mut(), |at| at + rank);
    let source = input.bytes().to_vec();
    let mut output = Aligned::new(case.bytes);
    if case.in_place {
        output.bytes_mut().copy_from_slice(&source);
    }
    let mut bench = Bench { group, case: case.clone(), input, output };
    group.barrier(&CallOptions::default())?;
    let first = max_all(group, bench.calls(1)?)?;
    let wrong = max_all(group, f64::from(u8::from(bench.output.bytes() != case.expected(ranks))))? > 0.0;
    if case.in_place {
        bench.output.bytes_mut().fill(0);
    }
    let warm = bench.calls(if first > 50e3 { 1 } else { 3 })?;
    let estimate = max_all(group, warm)?;
    let (budget, mut samples) = (f64::from(setting("BENCH_CASE_MS", 400)) * 1e3, setting("BENCH_SAMPLES", 15).min(255));
    let dirty = std::env::var_os("BENCH_DIRTY").is_some();
    let most = if dirty { 2000.0 } else { 20000.0 };
    let count = (budget / f64::from(samples) / estimate).clamp(1.0, most) as u32;
    if estimate * f64::from(count * samples) > 3.0 * budget {
        samples = ((3.0 * budget / (estimate * f64::from(count))) as u32).max(3);
    }
    let mut batches = Vec::new();
    for _ in 0..samples {
        let before = run_delay();
        let time = bench.batch(count, dirty.then_some(&source))?;
        batches.push((max_all(group, run_delay() - before)?, max_all(group, time)?));
    }
    batches.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut quiet: Vec<f64> = batches[..batches.len().div_ceil(3)].iter().map(|(_, time)| *time).collect();
    let mut all: Vec<f64> = batches.iter().map(|(_, time)| *time).collect();
    let (time, med) = (median(&mut quiet), median(&mut all));
    if rank == 0 {
        let mode = if case.in_place { "in" } else { "out" };
        let verdict = if wrong { "WRONG" } else { "ok" };
        println!(
            "{} {} {ranks} {time:.3} {} {mode} {verdict} med={med:.3} min={:.3} it={count} s={samples}",
            case.bytes, case.dtype_name, case.reduction, all[0]
        );
    }
    Ok(!wrong)
}

fn main() -> ExitCode {
    let text = std::env::args().nth(1).unwrap_or_else(|| "8:f32:sum:out,1048576:f32:sum:out".to_owned());
    let Some(cases) = text.split(',').map(Case::parse).collect::<Option<Vec<_>>>() else {
        eprintln!("a case is bytes:dtype:op:mode, such as 8:f32:sum:out; got {text:?}");
        return ExitCode::from(2);
    };
    let run = || {
        let communicator = Communicator::init(InitOptions::default())?;
        let ranks = u16::try_from(communicator.size()).unwrap_or(u16::MAX);
        let rank = u16::try_from(communicator.rank().index()).unwrap_or(u16::MAX);
        let group = communicator.world();
        let mut right = true;
        for case in &cases {
            right &= run_case(&group, rank, ranks, case)?;
        }
        Ok::<bool, foldcast::Error>(right)
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
