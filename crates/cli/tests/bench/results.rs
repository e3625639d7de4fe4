//! What is printed, and the exit code.

use super::{FOLDCAST, Finished, QUICK, bench, cores, foldcast, run};

/// The rows of the table, by columns.
fn rows(finished: &Finished) -> Vec<Vec<&str>> {
    let rows = finished.out.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

#[test]
fn the_table_has_the_columns_that_people_know() {
    let args = ["allreduce", "--ranks", "3", "--sizes", "24,1K,64K", "--dtype", "float32,bf16", "--op", "sum,prod"];
    let finished = bench(&args);
    assert_eq!(finished.code, Some(0), "{}", finished.err);
    for word in ["size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "out of place", "in place"] {
        assert!(finished.out.contains(word), "no {word} in\n{}", finished.out);
    }
    let rows = rows(&finished);
    let names: Vec<_> = rows.iter().map(|row| row[..4].join(" ")).collect();
    let mut expected = Vec::new();
    for redop in ["sum", "prod"] {
        for (dtype, size) in [("float32", 4), ("bfloat16", 2)] {
            expected.extend([24, 1024, 65536].map(|bytes| format!("{bytes} {} {dtype} {redop}", bytes / size)));
        }
    }
    assert_eq!(names, expected);
    for row in rows {
        assert_eq!(row.len(), 15, "{row:?}");
        for place in [&row[4..9], &row[9..14]] {
            let &[time, algbw, busbw, share, wrong] = place else { panic!("{place:?}") };
            assert!(number(time) > 0.0 && number(algbw) >= 0.0 && number(busbw) >= number(algbw), "{row:?}");
            assert_eq!((share == "-", wrong), (row[0] != "65536", "0"), "{row:?}");
        }
        assert_eq!(row[14] == "-", row[0] != "65536", "{row:?}");
    }
    assert!(finished.out.trim_end().ends_with("# every element was right"), "{}", finished.out);
    let several_cores = cores() > 1;
    let found = finished.out.lines().filter(|line| line.starts_with("# a cache line's round trip")).count();
    assert_eq!(found, usize::from(several_cores), "{}", finished.out);
}

#[test]
fn the_round_trip_alone_is_one_number() {
    let finished = run(&mut foldcast(&["bench", "round-trip"]));
    if cores() > 1 {
        assert_eq!((finished.code, finished.err.as_str()), (Some(0), ""));
        assert!(number(finished.out.strip_suffix('\n').unwrap()) > 0.0, "{}", finished.out);
    }
    let core = rustix::thread::sched_getcpu().to_string();
    let finished = run(std::process::Command::new("taskset").args(["-c", &core, FOLDCAST, "bench", "round-trip"]));
    assert_eq!((finished.code, finished.out.as_str()), (Some(2), ""), "{}", finished.err);
    assert!(finished.err.contains("only one core"), "{}", finished.err);
}

#[test]
fn one_mode_alone_leaves_the_other_columns_empty() {
    for (option, empty) in [("--in-place", 4..9), ("--out-of-place", 9..14)] {
        let finished = bench(&["allreduce", "--sizes", "8", option, "--dirty"]);
        assert_eq!(finished.code, Some(0), "{}", finished.err);
        let row = rows(&finished).remove(0);
        for at in 4..14 {
            assert_eq!(row[at] == "-", empty.contains(&at) || matches!(at, 7 | 12), "{row:?}");
        }
        assert!(finished.out.contains("inputs written anew before each call"), "{}", finished.out);
    }
}

#[test]
fn plain_lines_are_what_drivers_of_many_benchmarks_read() {
    let cases = "8:f32:sum:out,65536:bf16:sum:in,4096:i32:max:out,2048:f16:min:in";
    for dirty in [false, true] {
        let mut command = foldcast(&["bench", "allreduce", "--ranks", "2", "--plain", "--cases", cases]);
        command.env("BENCH_CASE_MS", "3.0").env("BENCH_SAMPLES", "5");
        if dirty {
            command.env("BENCH_DIRTY", "1");
        }
        let finished = run(&mut command);
        assert_eq!((finished.code, finished.err.as_str()), (Some(0), ""));
        let lines: Vec<Vec<_>> = finished.out.lines().map(|line| line.split(' ').collect()).collect();
        let expected =
            ["8 f32 2 sum out ok", "65536 bf16 2 sum in ok", "4096 i32 2 max out ok", "2048 f16 2 min in ok"];
        assert_eq!(lines.len(), expected.len(), "{}", finished.out);
        for (line, expected) in lines.iter().zip(expected) {
            assert_eq!([&line[..3], &line[4..7]].concat().join(" "), expected);
            assert!(number(line[3]) > 0.0);
            let s = line.last().unwrap().strip_prefix("s=").unwrap();
            assert!((3.0..=5.0).contains(&number(s)), "{line:?}");
        }
    }
}

#[test]
fn ranks_that_were_started_already_are_joined() {
    let join = [&["run", "-n", "3", "--", FOLDCAST, "bench", "allreduce", "--sizes", "1K"], &QUICK[..]].concat();
    let finished = run(&mut foldcast(&join));
    assert_eq!(finished.code, Some(0), "{}", finished.err);
    assert!(finished.out.lines().all(|line| line.starts_with("[0] ")), "only rank 0 speaks:\n{}", finished.out);
    assert!(finished.out.contains("allreduce, 3 ranks"), "{}", finished.out);

    let other = [&join[..], &["--ranks", "2"]].concat();
    let finished = run(&mut foldcast(&other));
    assert_eq!(finished.code, Some(2), "{}", finished.err);
    assert!(finished.err.contains("--ranks 2, but this process is one of 3 ranks already"), "{}", finished.err);
}

#[test]
fn one_rank_alone_works() {
    let finished = bench(&["allreduce", "--ranks", "1", "--sizes", "8,32K"]);
    assert_eq!((finished.code, rows(&finished).len()), (Some(0), 2), "{}", finished.err);
    assert!(!finished.out.contains("round trip"), "there is nobody else:\n{}", finished.out);
}

/// Ranks with other data than the others': `--seed` is what the data follow from.
fn with_odd_rank(odd: u32, collective: &str) -> Finished {
    let quick = QUICK.join(" ");
    let script = format!(
        r#"seed=0; [ "$RANK" = {odd} ] && seed=1
        exec "$0" bench {collective} --sizes 400 --out-of-place --seed $seed {quick}"#
    );
    run(&mut foldcast(&["run", "-n", "3", "--", "sh", "-c", &script, FOLDCAST]))
}

#[test]
fn legacy_rocm_build_6565_what_one_rank_alone_finds_wrong_is_everyones_verdict() {
    // Ranks 0 and 2 get from rank 0 what they expect; rank 1 does not, neither at first nor at last.
    let finished = with_odd_rank(1, "broadcast --root 0");
    assert_eq!(finished.code, Some(1), "{}", finished.err);
    let row = finished.out.lines().find(|line| line.starts_with("[0]") && !line.contains('#')).unwrap();
    let wrong = number(row.split_whitespace().nth(9).unwrap());
    assert!((100.0..=200.0).contains(&wrong) && wrong % 2.0 == 0.0, "of 2 x 100 elements of one rank: {row}");
    assert!(finished.out.contains(&format!("{wrong} elements were WRONG")), "{}", finished.out);
}

#[test]
fn an_input_that_is_not_what_it_should_be_makes_every_rank_wrong() {
    let finished = with_odd_rank(2, "allreduce");
    assert_eq!(finished.code, Some(1), "{}", finished.err);
    let row = finished.out.lines().find(|line| line.starts_with("[0]") && !line.contains('#')).unwrap();
    let wrong = number(row.split_whitespace().nth(9).unwrap());
    assert!((300.0..=600.0).contains(&wrong), "of 2 x 100 elements of each of three ranks: {row}");

    let quick = QUICK.join(" ");
    let script = format!(r#"exec "$0" bench allreduce --plain --cases 400:f32:sum:out --seed $RANK {quick}"#);
    let finished = run(&mut foldcast(&["run", "-n", "2", "--", "sh", "-c", &script, FOLDCAST]));
    assert_eq!(finished.code, Some(1), "{}", finished.err);
    assert!(finished.out.contains(" sum out WRONG "), "{}", finished.out);
}

#[test]
fn a_call_that_fails_is_told_by_its_rank() {
    let quick = QUICK.join(" ");
    let script = format!(r#"exec "$0" bench allreduce --sizes $((8 + 8 * RANK)) {quick}"#);
    let finished = run(&mut foldcast(&["run", "-n", "2", "--", "sh", "-c", &script, FOLDCAST]));
    assert_eq!(finished.code, Some(3), "{}", finished.err);
    assert!(finished.err.contains("foldcast bench: rank ") && finished.err.contains("count"), "{}", finished.err);
}

#[test]
fn buffers_in_memory_that_all_ranks_read_are_measured_and_right() {
    let finished = bench(&["allreduce", "--windows", "--sizes", "8,1M", "--ranks", "3"]);
    assert_eq!(finished.code, Some(0), "{}", finished.err);
    assert!(finished.out.contains("buffers in memory that all ranks can read"), "{}", finished.out);
    assert!(finished.out.trim_end().ends_with("# every element was right"), "{}", finished.out);
}
