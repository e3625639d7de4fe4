//! What a group costs: real processes that look at the memory that they map.

mod support;

use foldcast::{CallOptions, Communicator, Rank};
use support::{all_well, number, ranks, sum, total};

/// What a group may take for each of its ranks.
const MAX_PER_RANK: usize = 16 << 20;

/// Shared memory that this process maps: bytes of address space, and bytes that it has touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    mappings: usize,
    bytes: usize,
    touched: usize,
}

impl Mapped {
    fn now() -> Mapped {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("Linux");
        let mut mapped = Mapped { mappings: 0, bytes: 0, touched: 0 };
        let mut is_ours = false;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            match first {
                "Size:" if is_ours => mapped.bytes += kib(second),
                "Rss:" if is_ours => mapped.touched += kib(second),
                // The line that begins a mapping has its addresses; those below have a name with a colon.
                _ if first.contains('-') && !first.ends_with(':') => {
                    is_ours = line.contains("memfd:foldcast");
                    mapped.mappings += usize::from(is_ours);
                }
                _ => {}
            }
        }
        mapped
    }
}

fn kib(text: &str) -> usize {
    text.parse::<usize>().expect("a number of KiB") << 10
}

/// Descriptors of shared memory that are open: with them it would stay, mapped or not.
fn descriptors() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("memfd:foldcast")).count()
}

fn everybody(communicator: &Communicator) -> Vec<Rank> {
    (0..communicator.size()).map(Rank::from_index).collect()
}

#[test]
fn a_group_of_64_ranks_is_right_and_gives_its_memory_back() {
    all_well(&ranks("a_group_of_64_ranks_is_right_and_gives_its_memory_back", 64, |communicator| {
        let (world, options) = (communicator.world(), CallOptions::default());
        let size = communicator.size();
        assert_eq!(sum(&world, &[number(communicator)], &options), Ok(vec![total(size)]));
        let (before, open) = (Mapped::now(), descriptors());
        assert!(before.mappings > 0, "else nothing is measured");
        {
            let group = communicator.new_group(&everybody(communicator), Some("many")).expect("a group");
            for count in [1, 12, 1000, 1025, 1 << 18] {
                let got = sum(&group, &vec![number(communicator); count], &options).expect("a sum");
                assert!(got.iter().all(|element| *element == total(size)), "{count} elements");
            }
            group.barrier(&options).expect("all have joined, and none has destroyed it");
            let with = Mapped::now();
            let (bytes, touched) = (with.bytes - before.bytes, with.touched - before.touched);
            assert!(bytes > 0 && bytes <= size * MAX_PER_RANK, "{bytes} bytes for {size} ranks");
            // 64 ranks have 4,032 buffers to hand over a channel, of which a rank writes 63 and reads 63.
            assert!(touched > 0 && touched <= MAX_PER_RANK, "{touched} bytes touched");
            group.destroy().expect("destroyed");
        }
        let after = Mapped::now();
        assert_eq!((after.mappings, after.bytes), (before.mappings, before.bytes));
        assert!(descriptors() <= open, "{} descriptors are open, {open} before", descriptors());
        world.barrier(&options).expect("the others too");
    }));
}

#[test]
fn memory_that_no_call_has_used_costs_nothing() {
    all_well(&ranks("memory_that_no_call_has_used_costs_nothing", 3, |communicator| {
        let options = CallOptions::default();
        let before = Mapped::now();
        let group = communicator.new_group(&everybody(communicator), Some("small")).expect("a group");
        assert_eq!(sum(&group, &[number(communicator)], &options), Ok(vec![3.0]));
        let with = Mapped::now();
        let (bytes, touched) = (with.bytes - before.bytes, with.touched - before.touched);
        assert!(bytes > 1 << 20, "{bytes} bytes");
        // Counters and slots: a page or two for each rank.
        assert!(touched <= 128 << 10, "{touched} bytes of {bytes} touched by one small call");
    }));
}
