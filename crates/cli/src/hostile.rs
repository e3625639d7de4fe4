//! What must hold whatever arguments the command is given: for the test below and the fuzz target in `fuzz/`.
#![allow(unreachable_pub, reason = "the fuzz target builds this program as a library")]

use clap::Parser as _;

use crate::{Cli, Command};

/// The most cases that arguments may ask for: every size once, in every type, by every reduction, in both modes.
const MOST_CASES_PER_SIZE: usize = 12 * 4 * 2;

/// Arguments, one a line. Nothing is run.
///
/// # Panics
/// If something does not hold.
pub fn arguments(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Cli::try_parse_from(["foldcast"].into_iter().chain(text.split('\n'))).map(|cli| cli.command) {
        Ok(Command::Bench(args)) => match args.number_of_cases() {
            // A range has at most 64 sizes, and there are no more ranges, or cases, than characters.
            Ok(cases) => assert!((1..=MOST_CASES_PER_SIZE * 64 * (text.len() + 1)).contains(&cases), "{cases} cases"),
            Err(why) => assert!(!why.is_empty()),
        },
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::hostile::drive;

    #[test]
    fn command_lines() {
        let made = [
            "run\n-n\n4\n--no-pin\n--\npython\nx.py",
            "bench\nallreduce\n-n\n2\n--sizes\n8,64,1K..256M\n--dtype\nf32,bf16\n--op\nsum,max\n--in-place",
            "bench\nallreduce\n--plain\n--cases\n8:f32:sum:out,65536:bf16:sum:in\n--seed\n7",
            "bench\nbroadcast\n--root\n1\n--case-ms\n10.5\n--samples\n3\n--plot\nx.svg\n--json\nx.json",
            "bench\nround-trip",
            "explain\n-n\n3\n--bytes\n64K\n--dtype\nfloat16\n--reduction\nmax\n--json",
            "products\natlas-a2\n--json",
            "tune\n--help",
            "info\n--json",
        ];
        drive("arguments", &made.map(|lines| lines.as_bytes().to_vec()), arguments);
    }

    #[test]
    fn what_stands_twice_counts_once() {
        let many = |word: &str| vec![word; 3000].join(",");
        let text = format!("bench\nallreduce\n--sizes\n8\n--dtype\n{}\n--op\n{}", many("f32"), many("sum"));
        let cli = Cli::try_parse_from(["foldcast"].into_iter().chain(text.split('\n')));
        let Command::Bench(args) = cli.expect("good arguments").command else { panic!("not bench") };
        assert_eq!(args.number_of_cases(), Ok(2));
    }
}
