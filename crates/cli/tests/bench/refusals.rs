//! What cannot be measured is refused before anything runs.

use std::fs;

use super::{FOLDCAST, foldcast, path, run};

fn refused(args: &[&str], reasons: &[&str]) {
    let finished = run(&mut foldcast(&[&["bench"], args].concat()));
    assert_eq!((finished.code, finished.out.as_str()), (Some(2), ""), "{args:?}: {}", finished.err);
    for reason in reasons {
        assert!(finished.err.contains(reason), "{args:?}: no {reason:?} in {}", finished.err);
    }
}

#[test]
fn words_that_mean_nothing() {
    refused(&["allreduce", "--dtype", "float8"], &["float8", "bfloat16"]);
    refused(&["allreduce", "--dtype", "float32,"], &["--dtype", "bfloat16"]);
    refused(&["allreduce", "--op", "avg"], &["avg", "sum, max, min, prod"]);
    refused(&["allreduce", "--sizes", "8,huge"], &["huge", "64K"]);
    refused(&["allreduce", "--sizes", "0"], &["at least 1 byte"]);
    refused(&["allreduce", "--sizes", "-8"], &["-8"]);
    refused(&["allreduce", "--sizes", "8,6"], &["6 bytes", "float32", "4 bytes each"]);
    refused(&["allreduce", "--sizes", "4", "--dtype", "float32,float64"], &["4 bytes", "float64", "8 bytes each"]);
    refused(&["allreduce", "--case-ms", "0"], &["--case-ms", "1 to 3600000"]);
    refused(&["reduce"], &["reduce", "subcommand"]);
    refused(&["broadcast", "--root", "2"], &["--root 2", "2 ranks"]);
    refused(&["allreduce", "--in-place", "--out-of-place"], &["--in-place", "--out-of-place"]);
    refused(&["allreduce", "--plain", "--cases", "8:f32:sum"], &["8:f32:sum", "bytes:dtype:op:mode"]);
    refused(&["allreduce", "--plain", "--cases", "8:f32:sum:in", "--sizes", "8"], &["--cases", "--sizes"]);
    refused(&["allreduce", "--cases", "8:f32:sum:in"], &["--plain"]);
}

#[test]
fn variables_that_mean_nothing() {
    for (name, value) in [("BENCH_CASE_MS", "soon"), ("BENCH_SAMPLES", "0"), ("BENCH_SAMPLES", "256")] {
        let finished = run(foldcast(&["bench", "allreduce", "--sizes", "8"]).env(name, value));
        assert_eq!((finished.code, finished.out.as_str()), (Some(2), ""));
        assert!(finished.err.contains(&format!("{name} {value:?}")), "{}", finished.err);
    }
    let finished = run(foldcast(&["bench", "allreduce", "--sizes", "8"]).env("RANK", "0"));
    assert_eq!(finished.code, Some(2), "{}", finished.err);
    assert!(finished.err.contains("WORLD_SIZE"), "{}", finished.err);
}

#[test]
fn more_ranks_than_make_sense() {
    for ranks in ["0", "-1", "1025", "100000000000000000000", "two"] {
        refused(&["allreduce", "--ranks", ranks], &["1 to 1024"]);
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    let ranks = (cores * 32 + 1).to_string();
    if cores < 32 {
        refused(&["allreduce", "--ranks", &ranks, "--sizes", "8"], &[&ranks, "cores", "or fewer"]);
    }
    let script = r#"ulimit -n 16; exec "$0" bench allreduce --ranks 32 --sizes 8"#;
    let mut command = std::process::Command::new("sh");
    let finished = run(command.args(["-c", script, FOLDCAST]));
    assert_eq!((finished.code, finished.out.as_str()), (Some(125), ""), "{}", finished.err);
    assert!(finished.err.contains("open files"), "{}", finished.err);
}

#[test]
fn sizes_that_do_not_fit_into_memory() {
    refused(&["allreduce", "--sizes", "8,1048576G"], &["2 ranks", "need", "available", "smaller sizes or fewer ranks"]);
    refused(&["allreduce", "--sizes", "8..9999999999G"], &["available"]);
    let case = "1125899906842624:f32:sum:in";
    refused(&["allreduce", "--plain", "--cases", case], &["available"]);
}

#[test]
fn files_that_cannot_be_written() {
    for option in ["--json", "--plot"] {
        refused(
            &["allreduce", "--sizes", "8", option, "/nowhere/at/all.svg"],
            &["/nowhere/at/all.svg", "No such file"],
        );
        // Nothing can be made there, not even by root.
        refused(&["allreduce", "--sizes", "8", option, "/proc/all.svg"], &["/proc/all.svg"]);
    }
    let directory = path("directory.svg");
    fs::create_dir_all(&directory).unwrap();
    refused(&["allreduce", "--sizes", "8", "--plot", directory.to_str().unwrap()], &["it is a directory"]);
    fs::remove_dir(directory).unwrap();
    refused(&["allreduce", "--plot", "all.png"], &["all.png", ".svg or .html"]);
}

#[test]
fn a_refusal_leaves_files_as_they_are() {
    let (new, old) = (path("new.json"), path("old.json"));
    fs::write(&old, "old").unwrap();
    for file in [&new, &old] {
        let args = ["allreduce", "--sizes", "8", "--json", file.to_str().unwrap(), "--plot", "/nowhere/all.svg"];
        refused(&args, &["/nowhere/all.svg"]);
    }
    assert!(!new.exists());
    assert_eq!(fs::read_to_string(&old).unwrap(), "old");
    fs::remove_file(old).unwrap();
}
