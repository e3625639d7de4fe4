//! For tests: tries what reads foreign bytes with bytes that are almost right.
//!
//! Each crate that reads bytes or text from outside the process has a module `hostile`, with one function for each such
//! reader: it reads, and asserts what must hold whatever the bytes are. [`drive`] gives these functions to proptest, on
//! any toolchain, in every test run; `fuzz/` gives the same ones to libFuzzer. Both begin with the same seeds: those that
//! the crate makes itself, and the files in `fuzz/seeds/TARGET`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestError, TestRunner};

/// How many variants of the seeds are tried; 1,000 without it.
const CASES: &str = "FOLDCAST_FUZZ_CASES";

/// A directory to which the seeds that the crates make are written, for libFuzzer.
const WRITE_TO: &str = "FOLDCAST_FUZZ_SEEDS";

/// Longer inputs show nothing that shorter ones do not.
const MAX_BYTES: usize = 16 << 10;

/// Gives `body` the seeds, those of the target's directory and those `made` here, and random variants of them. It panics
/// where something does not hold.
///
/// # Panics
/// With the bytes, made as short as can be, if `body` does; or if there is no seed.
pub fn drive(target: &str, made: &[Vec<u8>], body: fn(&[u8])) {
    if let Some(directory) = std::env::var_os(WRITE_TO) {
        write(&Path::new(&directory).join(target), made);
    }
    let mut seeds = made.to_vec();
    seeds.extend(kept(target));
    assert!(!seeds.is_empty(), "{target}: variants need a seed");
    if cfg!(miri) {
        return some(&seeds, body);
    }
    let cases = std::env::var(CASES).map_or(1000, |text| text.parse().expect("a number of cases"));
    for seed in &seeds {
        run(target, 1, &Just(seed.clone()), body);
    }
    run(target, cases, &variants(seeds), body);
}

/// The seeds, and each cut short: in Miri, where proptest takes minutes for what is seconds elsewhere.
fn some(seeds: &[Vec<u8>], body: fn(&[u8])) {
    for seed in seeds {
        body(seed);
        for cut in 1..4 {
            body(&seed[..seed.len() * cut / 4]);
        }
    }
}

fn run(target: &str, cases: u32, inputs: &impl Strategy<Value = Vec<u8>>, body: fn(&[u8])) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(inputs, |bytes| {
        body(&bytes);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, bytes)) => panic!(
            "{target}: {why}\nby these {} bytes (to be kept as a file in fuzz/seeds/{target}): \"{}\"",
            bytes.len(),
            bytes.escape_ascii()
        ),
        Err(TestError::Abort(why)) => panic!("{target}: {why}"),
    }
}

/// The files of a target's directory.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the directory can be read").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed can be read")).collect()
}

fn write(directory: &Path, seeds: &[Vec<u8>]) {
    fs::create_dir_all(directory).expect("the directory for seeds can be made");
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(directory.join(format!("made-{number:03}")), seed).expect("a seed can be written");
    }
}

/// Seeds with up to eight changes, and now and then bytes that are nothing.
fn variants(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changed = (any::<Index>(), vec(change(), 0..8)).prop_map(move |(seed, changes)| {
        let mut bytes = seed.get(&seeds).clone();
        for change in &changes {
            change.apply(&mut bytes, &seeds);
            bytes.truncate(MAX_BYTES);
        }
        bytes
    });
    prop_oneof![9 => changed, 1 => vec(any::<u8>(), 0..300)]
}

/// One step away from what is right.
#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Bit(Index, u8),
    Word(Index, u32),
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    /// So many bytes once more.
    Repeat(Index, usize),
    /// Another seed from there on.
    Tail(Index, Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let byte = || prop_oneof![Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    let word = prop_oneof![Just(0), Just(u32::MAX), Just(1 << 31), 0..5000_u32, any::<u32>()];
    prop_oneof![
        (at(), byte()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (at(), 0..8_u8).prop_map(|(at, bit)| Change::Bit(at, bit)),
        (at(), word).prop_map(|(at, word)| Change::Word(at, word)),
        at().prop_map(Change::Cut),
        (at(), 1..40_usize).prop_map(|(at, len)| Change::Remove(at, len)),
        (at(), vec(byte(), 0..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..300_usize).prop_map(|(at, len)| Change::Repeat(at, len)),
        (at(), at(), at()).prop_map(|(at, seed, from)| Change::Tail(at, seed, from)),
    ]
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let place = |at: &Index| at.index(bytes.len() + 1);
        match self {
            Change::Byte(at, byte) => {
                let at = place(at);
                bytes.iter_mut().skip(at).take(1).for_each(|old| *old = *byte);
            }
            Change::Bit(at, bit) => {
                let at = place(at);
                bytes.iter_mut().skip(at).take(1).for_each(|old| *old ^= 1_u8 << *bit);
            }
            Change::Word(at, word) => {
                let at = place(at);
                bytes.iter_mut().skip(at).zip(word.to_le_bytes()).for_each(|(old, new)| *old = new);
            }
            Change::Cut(at) => {
                let at = place(at);
                bytes.truncate(at);
            }
            Change::Remove(at, len) => {
                let at = place(at);
                bytes.drain(at..(at + len).min(bytes.len()));
            }
            Change::Insert(at, more) => {
                let at = place(at);
                bytes.splice(at..at, more.iter().copied());
            }
            Change::Repeat(at, len) => {
                let at = place(at);
                let again = bytes[at..(at + len).min(bytes.len())].to_vec();
                bytes.splice(at..at, again);
            }
            Change::Tail(at, seed, from) => {
                let (at, tail) = (place(at), seed.get(seeds));
                bytes.truncate(at);
                bytes.extend_from_slice(&tail[from.index(tail.len() + 1)..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics where a length is believed.
    fn believes(bytes: &[u8]) {
        if let [len, rest @ ..] = bytes {
            let _ = &rest[..usize::from(*len)];
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "proptest takes minutes there")]
    fn a_reader_that_believes_a_length_is_found_out() {
        let seeds = [vec![3, 7, 8, 9]];
        believes(&seeds[0]);
        let found = std::panic::catch_unwind(|| drive("believes", &seeds, believes)).expect_err("found");
        let why = found.downcast_ref::<String>().expect("a text");
        assert!(why.contains("out of range") && why.contains("by these "), "{why}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "proptest takes minutes there")]
    fn every_change_works_on_nothing_too() {
        let seeds = [vec![1, 2, 3]];
        proptest!(|(change in change(), full in any::<bool>())| {
            let mut bytes = if full { seeds[0].clone() } else { Vec::new() };
            change.apply(&mut bytes, &seeds);
        });
    }
}
