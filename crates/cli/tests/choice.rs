//! `foldcast explain` and `foldcast tune`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

#[test]
fn explain_knows_memory_that_all_ranks_can_read() {
    let home = Home::new("windows");
    let chosen = |words: &str| home.json(&format!("explain --json {words}"))["algorithm"].as_str().unwrap().to_owned();
    for ranks in [2, 4] {
        for (size, windows, direct) in
            [("1M", true, true), ("64M", true, true), ("256K", true, false), ("1M", false, false)]
        {
            let flag = if windows { "--windows" } else { "" };
            assert_eq!(
                chosen(&format!("-n {ranks} -b {size} {flag}")) == "direct",
                direct,
                "{ranks} ranks, {size} {flag}"
            );
        }
    }
    assert_eq!(chosen("FOLDCAST_ALGO=one_shot -b 1M --windows"), "one_shot");
    let text = home.good("explain -n 3 -b 2M --windows");
    for words in
        ["in memory that all ranks can read on 3 ranks: direct", "Fold output", "from all inputs where they are"]
    {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
}

/// A directory of the test's own, in which the user's cache is; removed at its end.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Home {
        let path = std::env::temp_dir().join(format!("foldcast-choice-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Home(path)
    }

    /// Runs `foldcast` with these arguments and variables, given as words: `NAME=value .. argument ..`.
    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foldcast"));
        command.env("HOME", &self.0);
        for name in ["XDG_CACHE_HOME", "FOLDCAST_COSTS", "FOLDCAST_ALGO"] {
            command.env_remove(name);
        }
        for word in words.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) if !name.starts_with('-') => command.env(name, value),
                _ => command.arg(word),
            };
        }
        command.output().unwrap()
    }

    fn good(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.good(words)).unwrap()
    }

    fn refusal(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(!output.status.success() && output.stdout.is_empty(), "{words}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The files in the user's cache.
    fn files(&self) -> Vec<PathBuf> {
        let cache = std::fs::read_dir(self.0.join(".cache/foldcast"));
        cache.map_or(Vec::new(), |files| files.map(|file| file.unwrap().path()).collect())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_choice_is_explained() {
    let home = Home::new("explained");
    let text = home.good("explain --ranks 4 --bytes 1M --dtype float32 --reduction max");
    for words in ["allreduce of 262144 elements", "on 4 ranks: reduce_scatter_allgather", "why: ", "costs: built in"] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    let value = home.json("explain -n 2 -b 1K -d float16 --json");
    assert_eq!(
        (&value["algorithm"], &value["dtype"], &value["bytes"]),
        (&"flat".into(), &"float16".into(), &1024.into())
    );
    let candidates = value["candidates"].as_array().unwrap();
    let times = ["flat", "one_shot", "reduce_scatter_allgather"].map(|name| {
        let candidate = candidates.iter().find(|candidate| candidate["name"] == name).unwrap();
        candidate["predicted_us"].as_f64()
    });
    assert!(times[0].unwrap() < times[1].unwrap() && times[2].is_none(), "{times:?}");
    assert_eq!(value["plan"]["outline"].as_array().unwrap().len(), 4);
    assert_eq!(home.json("explain -n 1 -b 0 --json")["algorithm"], "local");
    assert_eq!(home.json("FOLDCAST_ALGO=one_shot explain -b 8 --json")["algorithm"], "one_shot");
    let other = home.json("FOLDCAST_ALGO=one_shot explain -n 3 -b 8 --json");
    assert_eq!((&other["algorithm"], &other["forced"]), (&"flat".into(), &"one_shot".into()));
    assert!(other["why"].as_str().unwrap().contains("cannot do this call"), "{other}");
    assert!(home.files().is_empty(), "it only reads");
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let home = Home::new("refused");
    let cases = [
        ("explain -b 17", "17 bytes are no whole number of float32 elements"),
        ("explain -b 9G", "8 GiB"),
        ("explain -b -1", "expected a size"),
        ("explain -n 0", "from 1 to 1024"),
        ("explain -n 2000", "from 1 to 1024"),
        ("explain -d complex64", "bfloat16"),
        ("explain -r avg", "prod"),
        ("FOLDCAST_ALGO=ring explain", "FOLDCAST_ALGO: expected one of local, flat"),
        ("FOLDCAST_COSTS=on explain", "FOLDCAST_COSTS: expected the path of a file"),
        ("FOLDCAST_COSTS=off tune", "FOLDCAST_COSTS is off"),
        ("FOLDCAST_COSTS=/proc/none/costs.json tune", "/proc/none/costs.json"),
        ("tune -n 1", "from 2 to 64"),
        ("tune -n 2,x", "from 2 to 64"),
        ("HOME=relative tune", "neither XDG_CACHE_HOME nor HOME"),
    ];
    for (words, why) in cases {
        let text = home.refusal(words);
        assert!(text.contains(why), "{words}: {why:?} is missing in\n{text}");
    }
}

#[test]
fn costs_are_measured_and_kept_and_used() {
    let home = Home::new("tuned");
    let measured = home.json("tune -n 2 --dry-run --json");
    assert!(home.files().is_empty(), "a dry run leaves nothing: {:?}", home.files());
    let rows = measured["measured"].as_array().unwrap();
    assert!(rows.len() > 15, "{measured}");
    assert!(rows.iter().all(|row| row["measured_us"].as_f64().unwrap() > 0.0), "{measured}");

    let text = home.good("tune -n 2 --force");
    let files = home.files();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = files[0].to_str().unwrap();
    assert!(text.contains(&format!("kept in {file}")) && text.contains("old costs: built in"), "{text}");
    let explained = home.json("explain --json");
    assert_eq!(explained["costs_from"], file);
    assert_ne!(explained["costs"], home.json("FOLDCAST_COSTS=off explain --json")["costs"]);
    // Another place, which is made.
    let other = home.0.join("other/costs.json");
    let other = other.to_str().unwrap();
    home.good(&format!("FOLDCAST_COSTS={other} tune -n 2 --force"));
    assert_eq!(home.json(&format!("FOLDCAST_COSTS={other} explain --json"))["costs_from"], other);

    std::fs::write(file, "{\"format\": \"nonsense\"}").unwrap();
    let output = home.run("explain --json");
    let (said, value) = (String::from_utf8(output.stderr).unwrap(), serde_json::from_slice::<Value>(&output.stdout));
    assert_eq!(said.lines().count(), 1, "one warning: {said}");
    assert!(said.contains("is of no use") && said.contains(file), "{said}");
    assert_eq!(value.unwrap()["costs_from"], "built in");
}
