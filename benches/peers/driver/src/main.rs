//! Times the allreduce of an MPI, or of oneCCL, by the method that Foldcast is timed by, in the same loop.
//!
//! ```sh
//! mpirun -n 2 foldcast-peer openmpi lib/libmpi.so.40 8:f32:sum:out,1048576:bf16:sum:in
//! mpirun -n 2 foldcast-peer mpich lib/libmpi.so.12 8:f32:sum:out
//! mpirun -n 2 foldcast-peer intelmpi lib/libmpi.so.12 8:f32:sum:out
//! mpirun -n 2 foldcast-peer oneccl lib/libmpi.so.12 lib/libccl.so.2 8:f32:sum:out
//! ```
//!
//! The libraries are opened when the program runs, and called through their C functions: so nothing of them is needed to
//! build this, and no C. For each case rank 0 prints `bytes dtype ranks time_us op mode ok ...`, or `# n/a` and the case if
//! the library has no such type. BENCH_CASE_MS, BENCH_SAMPLES and BENCH_DIRTY are as for `foldcast bench`.

use std::io::Write;
use std::process::ExitCode;

use bench::{Case, Method, Ranks, measure, plain_line};
use mpi::{Mpi, Threads};

mod mpi;
mod oneccl;

/// A library under measurement.
trait Peer: Ranks<Error = String> {
    /// Whether it can do this at all.
    fn takes(&self, case: &Case) -> bool;

    /// Which one it is.
    fn version(&self) -> String;

    /// Leaves in order.
    fn finish(&mut self);
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            say(std::io::stderr(), &format!("foldcast-peer: {problem}"));
            ExitCode::from(3)
        }
    }
}

fn say(mut to: impl Write, text: &str) {
    // Whoever closes the pipe has read enough.
    let _ = writeln!(to, "{text}").and_then(|()| to.flush());
}

fn run() -> Result<bool, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (mut peer, cases): (Box<dyn Peer>, _) = match *args {
        ["openmpi", library, cases] => (Box::new(Mpi::open(&mpi::OPEN_MPI, library, Threads::One)?), cases),
        ["mpich", library, cases] => (Box::new(Mpi::open(&mpi::MPICH, library, Threads::One)?), cases),
        ["intelmpi", library, cases] => (Box::new(Mpi::open(&mpi::INTEL_MPI, library, Threads::One)?), cases),
        ["oneccl", mpi, library, cases] => (Box::new(oneccl::OneCcl::open(mpi, library)?), cases),
        _ => return Err("usage: foldcast-peer openmpi|mpich|intelmpi MPI CASES, or oneccl MPI ONECCL CASES".into()),
    };
    let cases = cases.split(',').map(str::parse).collect::<Result<Vec<Case>, _>>()?;
    let right = measure_all(&mut *peer, &cases, &method()?)?;
    peer.finish();
    Ok(right)
}

fn method() -> Result<Method, String> {
    let number = |name: &str, default: u32| match std::env::var(name) {
        Ok(text) => text.parse::<u32>().map_err(|_| format!("{name} {text:?}: expected a whole number")),
        Err(_) => Ok(default),
    };
    let default = Method::default();
    Ok(Method {
        case_ms: number("BENCH_CASE_MS", default.case_ms)?,
        samples: number("BENCH_SAMPLES", default.samples)?,
        dirty: std::env::var_os("BENCH_DIRTY").is_some(),
        ..default
    })
}

fn measure_all(peer: &mut dyn Peer, cases: &[Case], method: &Method) -> Result<bool, String> {
    let tell = |peer: &dyn Peer, text: &str| {
        if peer.rank() == 0 {
            say(std::io::stdout(), text);
        }
    };
    tell(peer, &format!("# {}", peer.version()));
    let mut right = true;
    for case in cases {
        if peer.takes(case) {
            let measured = measure(peer, case, method)?;
            right &= measured.wrong == 0;
            tell(peer, &plain_line(case, peer.size(), &measured));
        } else {
            tell(peer, &format!("# n/a {case}"));
        }
    }
    Ok(right)
}
