//! A rank that writes nonsense over what it shares with the others: they get wrong sums, or errors; never a crash, and never a
//! wait without end.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;

use foldcast::{CallOptions, Communicator, Error, Group, Rank, Timeout};
use support::{all_well, named, ranks, submit, sum, wait, within};

/// A small generator of nonsense (xorshift, after Marsaglia, 2003).
struct Nonsense(u64);

impl Nonsense {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Small numbers, all ones, noise: what bounds and differences get wrong.
    fn word(&mut self) -> u64 {
        match self.next() % 5 {
            0 => self.next() % 4096,
            1 => u64::MAX - self.next() % 3,
            2 => 0,
            3 => self.next() % 4,
            _ => self.next(),
        }
    }
}

/// The shared segments of this process: where they begin, and how many bytes they have.
fn segments() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let range = |line: &str| {
        let (first, last) = line.split_once(' ')?.0.split_once('-')?;
        let [first, last] =
            [first, last].map(|text| u64::from_str_radix(text, 16).expect("the kernel writes hexadecimals"));
        Some((first, last - first))
    };
    maps.lines().filter(|line| line.contains("memfd:foldcast")).filter_map(range).collect()
}

/// Overwrites so many words, mostly in the first part of each segment, where what the ranks agree by is.
fn scribble(nonsense: &mut Nonsense, segments: &[(u64, u64)], words: usize) {
    const CONTROL_BYTES: u64 = 192 << 10;
    let memory = File::options().write(true).open("/proc/self/mem").expect("a process may write its own memory");
    for (base, len) in segments.iter().cycle().take(words) {
        let bytes = if nonsense.next().is_multiple_of(8) { *len } else { (*len).min(CONTROL_BYTES) };
        let at = base + nonsense.next() % (bytes / 8) * 8;
        memory.write_all_at(&nonsense.word().to_ne_bytes(), at).expect("the segment is mapped");
    }
}

fn options() -> CallOptions<'static> {
    CallOptions { timeout: within(0.2), ..CallOptions::default() }
}

/// Calls of every kind; what comes of them does not matter.
fn call(group: &Group, count: usize) -> Vec<Error> {
    let input = vec![1.0; count];
    let submitted = submit(group, input.clone(), &CallOptions { name: Some("submitted"), ..options() });
    let results = [
        sum(group, &input, &options()),
        sum(group, &input, &CallOptions { timeout: within(0.2), ..named("x") }),
        submitted.and_then(|received| wait(&received)),
    ];
    results.into_iter().filter_map(Result::err).collect()
}

/// Rounds in which rank 1 scribbles, in a new group each; `which` says over which of its segments.
fn rounds(communicator: &Communicator, which: fn(&(u64, u64)) -> bool) {
    let all: Vec<Rank> = (0..communicator.size()).map(Rank::from_index).collect();
    let mut nonsense = Nonsense(0x9e37_79b9_7f4a_7c15);
    let mut failed = 0;
    for round in 0..12 {
        let name = format!("round {round}");
        let Ok(group) = communicator.new_group(&all, Some(&name)) else { continue };
        let timeout = Timeout::After(std::time::Duration::from_millis(500));
        let _ = sum(&group, &[1.0; 5], &CallOptions { timeout, ..CallOptions::default() });
        let scribbler = (communicator.rank() == Rank(1)).then(|| {
            let segments: Vec<_> = segments().into_iter().filter(which).collect();
            assert!(!segments.is_empty(), "nothing is shared");
            let mut nonsense = Nonsense(nonsense.next());
            std::thread::spawn(move || {
                for _ in 0..40 {
                    scribble(&mut nonsense, &segments, 500);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            })
        });
        for count in [1, 700, 20_000, 300_000] {
            for error in call(&group, count) {
                failed += 1;
                assert!(error.to_string().contains("rank"), "{error}");
            }
        }
        if let Some(scribbler) = scribbler {
            scribbler.join().expect("it only writes");
        }
        group.abort();
    }
    // Else nothing was written that matters.
    assert!(failed > 0, "no call failed");
}

#[test]
fn a_rank_that_scribbles_over_a_groups_memory_harms_that_group_only() {
    all_well(&ranks("a_rank_that_scribbles_over_a_groups_memory_harms_that_group_only", 3, |communicator| {
        // The world's memory is some KiB, a group's MiB.
        rounds(communicator, |(_, len)| *len > 1 << 20);
        let pair = communicator.new_group(&[Rank(0), Rank(2)], Some("pair")).expect("a group");
        if communicator.rank() != Rank(1) {
            assert_eq!(sum(&pair, &vec![1.0; 100_000], &CallOptions::default()), Ok(vec![2.0; 100_000]));
        }
        // Nobody leaves while another one still needs it.
        let last = communicator.new_group(&[Rank(0), Rank(1), Rank(2)], Some("last")).expect("a group");
        assert_eq!(sum(&last, &[1.0; 3], &CallOptions::default()), Ok(vec![3.0; 3]));
    }));
}

#[test]
fn a_rank_that_scribbles_over_everything_crashes_and_hangs_nobody() {
    all_well(&ranks("a_rank_that_scribbles_over_everything_crashes_and_hangs_nobody", 3, |communicator| {
        rounds(communicator, |_| true);
        assert!(communicator.check_process().is_ok());
        let alone = communicator.new_group(&[communicator.rank()], Some("alone")).expect("a group");
        assert_eq!(sum(&alone, &[1.0; 3], &CallOptions::default()), Ok(vec![1.0; 3]));
    }));
}
